"""Shares of the classes in a population, as a scenario, a site or a message declares them."""

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

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
    tuple[Annotated[float, Field(ge=0, le=1)], ...],
    Field(min_length=2, max_length=1000),
    AfterValidator(_sum_to_one),
]
TrainedPrevalence = Annotated[Prevalence, AfterValidator(_above_zero)]
# `estimated`: by the site, from its own predictions, and kept there.
SitePrevalence = Literal["estimated"] | Prevalence
