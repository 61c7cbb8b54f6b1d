"""What a run warns of, as a record: made where it arises, worded by `report.warnings` alone."""

import math

from fl_dpbayes.config.base import Config

Value = str | int | float


class RunWarning(Config):
    """A warning of one `kind`; `site` is the one site that it speaks of, if any, `values` are what it names."""

    kind: str
    site: str = ""
    values: tuple[tuple[str, Value], ...] = ()


def warning(kind: str, site: str = "", /, **values: Value) -> RunWarning:
    """Make a warning of a kind of `report.warnings.SENTENCES`; a number that is not finite is kept as text."""
    named = [
        (name, value if isinstance(value, str) or math.isfinite(value) else str(value))
        for name, value in values.items()
    ]
    return RunWarning(kind=kind, site=site, values=tuple(named))
