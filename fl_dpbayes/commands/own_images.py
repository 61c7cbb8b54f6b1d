"""A look at one's own folder of images, for a scenario."""

import numpy as np
import pandas
from pydantic import ValidationError

from fl_dpbayes.commands.scenario_draft import (
    ALLOW_SHARED_UNITS,
    SHARED_UNITS_LINES,
    DataChoices,
    DataDescription,
    proposed_sites,
    toml_value,
)
from fl_dpbayes.config import ImageFolder, explain
from fl_dpbayes.data.shared_units import check_shared_units, shared_units
from fl_dpbayes.data.sources.images import IMAGE_SUFFIXES, found_names, image_name
from fl_dpbayes.data.sources.table import site_names
from fl_dpbayes.errors import UserError

# Height and width of images, in pixels.
SIDE = 28
IMAGE_CLIP_NORM = 2.0
# Lines of the template for tables -> what images need in their place.
IMAGE_LINES = {
    'kind = "table"': 'kind = "images"',
    "of a table of your own": "of images of your own",
    "has the rows that carry its name": "has the images whose path names it",
    'kind = "logistic"   # or "mlp", with hidden = [32]': (
        'kind = "logistic"   # or '
        '"cnn"\nfeatures = { kind = "scattering" }   # fixed, so that it costs no privacy'
    ),
}


def describe_images(choices: DataChoices) -> DataDescription:
    """Look at a folder of images.

    Args:
        choices: Where it lies, and the patterns that find sites and patients in paths.

    Raises:
        UserError: If it holds no images, or a pattern does not fit their paths.
    """
    folder = choices.paths[0]
    if len(choices.paths) > 1 or choices.label or choices.event or choices.days_since:
        raise UserError(
            f"--from {folder} is a folder of images: give it alone, its sub-folders are the "
            "labels, in alphabetical order, and of two the second is the event; of tables, name "
            "each file by --from"
        )
    site = choices.site
    unit = choices.unit
    try:
        source = ImageFolder(
            path=folder, height=SIDE, width=SIDE, site_pattern=site, patient_pattern=unit
        )
    except ValidationError as error:
        raise UserError(f"--site, --unit: {explain(error, ImageFolder)}") from None
    paths = [
        path for path in sorted(folder.glob("*/**/*")) if path.suffix.lower() in IMAGE_SUFFIXES
    ]
    if not paths:
        raise UserError(f"image folder {folder} has no images ({', '.join(IMAGE_SUFFIXES)})")
    units = found_names(source, paths, "patient_pattern")
    if not units:
        units = [image_name(source, path) for path in paths]
    table = pandas.DataFrame({"site": found_names(source, paths, "site_pattern"), "unit": units})
    shared = shared_units(table["unit"].rename(f"--patient {unit}"), table["site"])
    check_shared_units(shared, are_allowed=choices.allow_shared_units, allow=ALLOW_SHARED_UNITS)
    sizes = table.drop_duplicates()["site"].value_counts()
    names = site_names(table["site"].to_numpy(dtype=np.str_), f"--site {site}: the pattern")
    unit_line = (
        "# patient_pattern: every image is another patient. If patients have several, find theirs."
        if unit is None
        else f"patient_pattern = {toml_value(unit)}"
    )
    source_lines = [
        f"height = {SIDE}   # every image is resized to this",
        f"width = {SIDE}",
        f"site_pattern = {toml_value(site)}",
        unit_line,
    ]
    labels = source.names_of_classes
    return DataDescription(
        paths=[folder],
        sites=proposed_sites(sizes, names),
        source_lines=source_lines,
        unit=source.unit,
        label=" or ".join(labels),
        clip_norm=IMAGE_CLIP_NORM,
        data_lines=() if shared is None else SHARED_UNITS_LINES,
        summary=f"{len(paths)} images of {source.task.outcome.description}",
    )
