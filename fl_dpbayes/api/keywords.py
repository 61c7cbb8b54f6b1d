"""Keywords of the face: what a misspelt one, or another library's name, should have been."""

from collections.abc import Collection, Mapping

from fl_dpbayes.config import OTHER_LIBRARIES, PrivacyPlan, SamplerSettings, Training, key_hint
from fl_dpbayes.errors import UserError

# Our key -> how to write it in a call that does not take it by name.
PLACES = {
    **{key: f'settings={{"training.{key}": ...}}' for key in Training.model_fields},
    **{key: f"sampler=fl.DPSGLD({key}=...)" for key in SamplerSettings.model_fields},
    **{key: f"privacy=fl.Privacy({key}=...)" for key in PrivacyPlan.model_fields},
    "sampling_rate": "privacy=fl.Privacy(sampling_rate=...), the batch size over the units",
}


def check_keywords(called: str, given: Mapping[str, object], allowed: Collection[str]) -> None:
    """Refuse a keyword that a call does not take, and name the one that is meant.

    Args:
        called: What was called, for the error.
        given: The keywords.
        allowed: What it takes.

    Raises:
        UserError: If it does not take one of them.
    """
    unknown = [key for key in given if key not in allowed]
    if unknown:
        meant = _meant(unknown[0], allowed)
        raise UserError(
            f"{called} takes no {unknown[0]!r}: {meant}it takes {', '.join(sorted(allowed))}"
        )


def _meant(key: str, allowed: Collection[str]) -> str:
    """Return the keyword that was meant, as the part of a sentence; empty if nobody can tell."""
    ours = OTHER_LIBRARIES.get(key, key)
    if ours in allowed:
        return f"write {ours}=...; "
    place = PLACES.get(ours, "")
    if place.partition("=")[0] in allowed:
        return f"write {place}; "
    return key_hint(key, allowed)
