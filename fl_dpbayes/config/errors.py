"""What the person at the keyboard is told: mistakes, a stop, and warnings of a run."""

import math

from fl_dpbayes.config.base import Config


class Told(Exception):  # noqa: N818
    """What a person is told by its text alone."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]  # what IPython shows in place of a traceback


class UserError(Told):
    """A mistake that a user can correct.

    The text names the value, what is allowed and the remedy; the command line prints it alone and
    ends with status 2.
    """


class FailedError(UserError):
    """Work that was begun and did not come to its end; the command line ends with status 1."""


class Stopped(Told):
    """A run that the person at the keyboard stopped; the text says what was kept and how to go on.

    The command line prints it and ends with status 130.
    """


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
