"""What the person at the keyboard is told: mistakes, work that failed, a stop."""


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
