"""The one exception that carries a message meant for the person at the keyboard."""


class UserError(Exception):
    """A mistake that a user can correct.

    The text names the value, what is allowed and the remedy; the command line prints it without a traceback and ends
    with status 2.
    """


class Stopped(Exception):  # noqa: N818
    """A run that the person at the keyboard stopped; the text says what was kept and how to go on.

    The command line prints it and ends with status 1.
    """
