"""The one function that text from another machine passes before anything keeps or shows it."""

from typing import Annotated

from pydantic import AfterValidator, Field

MOST_CHARACTERS = 80
UNPRINTABLE = "?"
CUT = "…"


def outside_text(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a text that no terminal, page or log takes for anything but text, and that fills no disk.

    Whatever Unicode does not call printable becomes a question mark: control characters (escape sequences begin with
    one), line ends, marks that reverse the direction of writing, characters of no width, halves of surrogate pairs.

    Args:
        text: from outside, of any length.
        most: characters of the result at most, >= 1.

    Returns:
        The text; what is cut off leaves an ellipsis. A second call changes nothing.
    """
    shown = "".join(letter if letter.isprintable() else UNPRINTABLE for letter in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + CUT


OutsideText = Annotated[str, Field(max_length=200), AfterValidator(outside_text)]
