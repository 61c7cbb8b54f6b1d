"""Warnings of a run: a kind and what it names; `report.warnings` puts them into words."""

import math

from fl_dpbayes.files import Config

Value = str | int | float


class RunWarning(Config):
    """A warning of one `kind`.

    `site` is the one site that it speaks of, if any, `values` are what it names.
    """

    kind: str
    site: str = ""
    values: tuple[tuple[str, Value], ...] = ()


def warning(kind: str, site: str = "", /, **values: Value) -> RunWarning:
    """Make a warning of a kind of `report.warnings.SENTENCES`.

    A number that is not finite is kept as text.
    """
    named = {
        key: each if isinstance(each, str) or math.isfinite(each) else str(each)
        for key, each in values.items()
    }
    return RunWarning(kind=kind, site=site, values=tuple(named.items()))
