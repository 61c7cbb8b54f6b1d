"""The one exception that carries a message meant for the person at the keyboard."""


class UserError(Exception):
    """A mistake that a user can correct.

    The text names the value, what is allowed and the remedy; the command line prints it without a traceback and ends
    with status 2.
    """
