"""The only way out of reading a reply that went wrong: its site is left out, and the run goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from logging import WARNING

from flwr.common import log

from fl_dpbayes.config.outside_text import outside_text

UNREADABLE = "it cannot be read"


class RejectedError(Exception):
    """A reply that is not what was asked for; its text is the reason, printable and at most 80 characters."""


@contextmanager
def rejecting() -> Iterator[None]:
    """Turn whatever goes wrong while one reply is read into its rejection.

    Checks raise a ValueError that names what is wrong. Nothing else should come, but what a site sends must not choose
    which of our mistakes ends the run of all others.

    Raises:
        RejectedError: with the reason.
    """
    try:
        yield
    except ValueError as error:
        raise RejectedError(outside_text(str(error))) from None
    except Exception as error:
        log(WARNING, "a reply could not be read: %s", type(error).__name__)
        raise RejectedError(UNREADABLE) from None
