"""The scenario's section `[recalibration]`, and the plan that follows from it."""

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveFloat, PositiveInt, model_validator

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.plan import MIN_CLIP_NORM, AnyPrivacyPlan
from fl_dpbayes.config.recalibration import (
    AnyRecalibrationPlan,
    CountingMethod,
    CountingPlan,
    DescentMethod,
    RecalibrationPlan,
)


class Recalibration(Config):
    """A map of the posterior's probabilities, fitted by private descent on a share of each training site's units.

    The share is kept from training, so `epsilon` (default: `privacy.epsilon`) is spent beside that of training, not on
    top of it. `federated`: the sites' parameters are averaged after each of `rounds`, into which `steps` are divided,
    and every site uses the average. `site`: each training site uses its own, the other sites the average.
    """

    method: DescentMethod = "temperature"
    scope: Literal["federated", "site"] = "federated"
    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    epsilon: PositiveFloat | None = None
    clip_norm: Annotated[float, Field(ge=MIN_CLIP_NORM)] = 5.0
    steps: Annotated[int, Field(ge=1, le=10_000)] = 40
    rounds: PositiveInt = 1
    step_size: PositiveFloat = 1.0

    @model_validator(mode="after")
    def _rounds_fit(self) -> "Recalibration":
        if self.steps % self.rounds:
            raise ValueError(f"rounds is {self.rounds}: it must divide steps, {self.steps}")
        if self.scope == "site" and self.rounds > 1:
            raise ValueError(f"rounds is {self.rounds}, but with scope 'site' nothing is averaged: leave it at 1")
        return self


class IsotonicRecalibration(Config):
    """A rising map of the posterior's probabilities, from one private count of bins at each training site.

    `fraction`, `epsilon` and `scope` as for the other methods; `federated`: all sites use the map of the summed counts.
    """

    method: CountingMethod = "isotonic"
    scope: Literal["federated", "site"] = "federated"
    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    epsilon: PositiveFloat | None = None


def _with_default_method(content: Any) -> Any:
    return {"method": "temperature", **content} if isinstance(content, dict) else content


AnyRecalibration = Annotated[
    Annotated[Recalibration | IsotonicRecalibration, Field(discriminator="method")],
    BeforeValidator(_with_default_method),
]


def recalibration_plan(recalibration: AnyRecalibration, privacy: AnyPrivacyPlan) -> AnyRecalibrationPlan:
    """Build the plan that every recalibration request carries.

    The plan of the training gives delta, adjacency and, where the section has none, epsilon.
    """
    spent = recalibration.epsilon or privacy.epsilon
    own = recalibration.model_dump(exclude={"scope", "fraction"})
    shared = {
        "epsilon": spent if math.isfinite(spent) else None,
        "delta": privacy.delta,
        "adjacency": privacy.adjacency,
    }
    kind = CountingPlan if isinstance(recalibration, IsotonicRecalibration) else RecalibrationPlan
    return kind.model_validate(own | shared)
