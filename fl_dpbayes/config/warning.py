"""What a run warns of, as a record: made where it arises, worded by `report.warnings` alone."""

import math

from fl_dpbayes.config.base import Record

Value = str | int | float


class RunWarning(Record):
    """A warning of one `kind`; `site` is the one site that it speaks of, if any, `values` are named facts."""

    kind: str
    site: str = ""
    values: tuple[tuple[str, Value], ...] = ()


def warning(kind: str, site: str = "", /, **values: Value) -> RunWarning:
    """Make a warning; a number that is not finite is kept as the text that it is written as.

    Args:
        kind: a key of `report.warnings.SENTENCES`.
        site: the one site that it speaks of; empty where it speaks of none, or of several.
        values: what its sentence names.
    """
    finite = {name: value if isinstance(value, str) or math.isfinite(value) else f"{value}" for name, value in values.items()}
    return RunWarning(kind=kind, site=site, values=tuple(finite.items()))
