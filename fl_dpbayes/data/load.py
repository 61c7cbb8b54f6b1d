"""From a source to its records."""

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.kinds import implementation
from fl_dpbayes.config.sources import OfficialPart, Source
from fl_dpbayes.data.records import Records


def load_source(source: Source, part: OfficialPart) -> Records:
    """Load one official part of a source with float32 features, pixels in [0, 1]; else as `load_unscaled`."""
    return load_unscaled(source, part).scaled()


def load_unscaled(source: Source, part: OfficialPart) -> Records:
    """Load one official part of a source as its files hold it, in their order: pixels may still be whole numbers.

    Raises UserError if the source has no such part, or a file is missing, damaged or not as described.
    """
    if part not in source.parts:
        raise UserError(
            f"source {source.kind!r} has no part {part!r}: choose {' or '.join(source.parts)}"
            + ("; for held-out records give the site a number of records" if source.parts == ("train",) else "")
        )
    records: Records = implementation("fl_dpbayes.data.sources", source.kind).load(source, part)
    return records
