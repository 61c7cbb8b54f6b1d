"""What a reply says of the passes that its work took."""

from dataclasses import asdict

from clients.own_site import compute_device
from fl_dpbayes.config import SiteFile, outside_text
from fl_dpbayes.models import product_library, reproducible_branch, shapes_so_far
from fl_dpbayes.models.processor import processor
from fl_dpbayes.protocol import MOST_PASSES, MOST_SLOWER, StatedPass, StatedPasses


def stated_passes(site_file: SiteFile) -> StatedPasses | None:
    """Return what the passes of the work under way looked like; None if there was none.

    No record has a part in it.
    """
    shapes = sorted(shapes_so_far(), key=str)[:MOST_PASSES]
    if not shapes:
        return None
    passes = []
    for shape in shapes:
        slower = min(shape.slower, MOST_SLOWER)
        passes.append(StatedPass.model_validate(asdict(shape) | {"slower": slower}))
    return StatedPasses(
        processor=outside_text(processor(compute_device(site_file))),
        library=outside_text(product_library()),
        reproducible=reproducible_branch(),
        passes=tuple(passes),
    )
