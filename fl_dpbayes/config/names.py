"""The names and texts that scenarios, site files and messages share, and what each may be."""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

Role = Literal["train", "held_out", "shifted"]
EvaluationRelease = Literal["public", "noised", "none"]
MAX_GROUP_TEXT = 60
# By which a site's results are told apart; each makes the noise on all of them larger.
MAX_GROUP_ATTRIBUTES = 5
# How alike two names are at least, 0 to 1, of which one may be the other mistyped.
NEAR = 0.7
# So many names are listed of those that may be given.
MOST_LISTED = 10
PREDICTORS = {
    "last": "last iterate",
    "posterior": "average of posterior samples",
    "recalibrated": "recalibrated posterior",
    "hierarchical": "posterior over hospitals",
    "prior_corrected": "posterior corrected for prevalence",
    "majority": "majority class",
    "site_only": "one site alone",
    "central": "all records in one place",
    "published": "published score",
}


def site_name(text: str) -> str:
    """Return a hospital's own name as a site can bear it, of at most 64 characters.

    Accents are dropped; whatever else a site's name cannot hold becomes a dash.
    """
    plain = "".join(
        letter
        for letter in unicodedata.normalize("NFKD", text)
        if not unicodedata.combining(letter)
    )
    return re.sub(r"[^A-Za-z0-9._]+", "-", plain).strip("-._")[:64]


def _check_site_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        proposal = site_name(text[:200])
        hint = f", for example {proposal!r}" if proposal else ""
        raise ValueError(
            f"a site's name is 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', no sign first{hint}"
        )
    return text


SiteName = Annotated[str, AfterValidator(_check_site_name)]


def outside_text(text: str, most: int = 80) -> str:
    """Return a text from another machine as nothing but text, of at most `most` characters.

    Every text from another machine passes here. Whatever Unicode does not call printable becomes a
    question mark: control characters (escape sequences begin with one), line ends, marks that
    reverse writing. What is cut off leaves an ellipsis. A second call changes nothing.
    """
    printable = "".join(letter if letter.isprintable() else "?" for letter in text[: most + 1])
    return printable if len(printable) <= most else printable[: most - 1] + "…"


OutsideText = Annotated[str, Field(max_length=200), AfterValidator(outside_text)]


def is_group_text(text: str) -> bool:
    """Return whether the name of an attribute, or of its value, can be shown anywhere.

    It can if it has 1 to MAX_GROUP_TEXT characters, all of them printable.
    """
    return bool(text) and outside_text(text, MAX_GROUP_TEXT) == text


def _group_text(text: str) -> str:
    if not is_group_text(text):
        raise ValueError(f"a subgroup's name must be 1 to {MAX_GROUP_TEXT} printable characters")
    return text


GroupText = Annotated[str, AfterValidator(_group_text)]


def counted(number: int, noun: str) -> str:
    """Write "1 sample", "3 samples"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that are nearly the given one, the nearest first."""
    by_lower_case = {other.lower(): other for other in map(str, names)}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=3, cutoff=NEAR)
    return [by_lower_case[lower] for lower in near]


def near_hint(name: str, names: Iterable[str]) -> str:
    """Ask whether the nearest name was meant, as the part of a sentence; empty if none is near."""
    near = near_names(name, names)
    return f"did you mean {near[0]!r}? " if near else ""


def first_names(names: Sequence[str]) -> str:
    """List names, and of many the first ones and how many more there are."""
    more = len(names) - MOST_LISTED
    rest = f" and {more} more" if more > 0 else ""
    return f"{', '.join(names[:MOST_LISTED])}{rest}"


def column_hint(name: str, columns: Iterable[str]) -> str:
    """Say which columns were meant by a name that none has, or list the first of them."""
    listed = [str(column) for column in columns]
    near = near_names(name, listed)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"its columns are {first_names(listed)}"
