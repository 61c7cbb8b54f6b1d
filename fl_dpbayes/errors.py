"""What the person at the keyboard is told: mistakes, work that failed, a stop."""


class MessageError(Exception):
    """An error that a person reads by its text alone, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback."""
        return [f"{type(self).__name__}: {self}"]


class UserError(MessageError):
    """A mistake that a user can correct.

    The text names the value, what is allowed and the remedy; the command line prints it alone and
    ends with status 2.
    """


class FailedError(UserError):
    """Work that was begun and did not come to its end; the command line ends with status 1."""


class Stopped(MessageError):  # noqa: N818
    """A run that the person at the keyboard stopped; the text says what was kept and how to go on.

    The command line prints it and ends with status 130.
    """
