"""Shares of the classes in a population, as a scenario, a site or a message declares them."""

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.names import EvaluationRelease

MAX_DEVIATION = 1e-6
# A correction divides by it: by one near 0 it would overflow for some records, and the failure would tell of them.
SMALLEST_TRAINED = 1e-9


def _sum_to_one(shares: tuple[float, ...]) -> tuple[float, ...]:
    if abs(math.fsum(shares) - 1) > MAX_DEVIATION:
        raise ValueError(f"the shares of the classes sum to {math.fsum(shares):.6g}: they must sum to 1")
    return shares


def _above_zero(shares: tuple[float, ...]) -> tuple[float, ...]:
    if min(shares) < SMALLEST_TRAINED:
        raise ValueError(
            f"a class has share {min(shares):g}: every class that is trained on has some records, "
            f"{SMALLEST_TRAINED:g} of all or more"
        )
    return shares


Prevalence = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=2, max_length=1000), AfterValidator(_sum_to_one)
]
TrainedPrevalence = Annotated[Prevalence, AfterValidator(_above_zero)]
# `estimated`: by the site, from its own predictions, and kept there.
SitePrevalence = Literal["estimated"] | Prevalence


def check_noised_estimate(key: str, prevalence: SitePrevalence | None, release: EvaluationRelease) -> None:
    """Refuse an estimate where results leave with noise: it moves every record's prediction by all the others'.

    The noise covers what one unit adds to the sums itself, not what it does to the others' predictions.

    Raises ValueError for an estimate under release `noised`; `key` is what to call it.
    """
    if prevalence == "estimated" and release == "noised":
        raise ValueError(
            f"{key} is 'estimated' from all test records, which the noise of release 'noised' does not cover: declare "
            "numbers, or remove it"
        )


def check_prevalence_classes(key: str, prevalence: Prevalence | SitePrevalence | None, classes: int) -> None:
    """Check that a declared prevalence has one share for each class of the records.

    Raises UserError if it has another number of shares; `key` is what to call it.
    """
    if isinstance(prevalence, tuple) and len(prevalence) != classes:
        raise UserError(f"{key} has {len(prevalence)} shares, the records have {classes} classes: give one for each")
