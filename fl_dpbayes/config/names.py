"""The names that scenarios, site files and messages share, and what each may be."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fl_dpbayes.config.outside_text import outside_text

Role = Literal["train", "held_out", "shifted"]
SiteName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
EvaluationRelease = Literal["public", "noised", "none"]
MAX_GROUP_TEXT = 60
PREDICTORS = {
    "last": "last iterate",
    "posterior": "averaged posterior",
    "recalibrated": "recalibrated posterior",
    "prior_corrected": "posterior corrected for prevalence",
    "site_only": "one site alone",
    "central": "pooled data",
}


def group_text(text: str) -> str:
    """Return the name of an attribute or of its value, after checking that it can be shown anywhere.

    Raises:
        ValueError: if it is empty, longer than MAX_GROUP_TEXT or not printable.
    """
    if not text or outside_text(text, MAX_GROUP_TEXT) != text:
        raise ValueError(f"a subgroup's name must be 1 to {MAX_GROUP_TEXT} printable characters")
    return text


GroupText = Annotated[str, AfterValidator(group_text)]
