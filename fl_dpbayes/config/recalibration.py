"""What recalibration does to predictions, and the plan by which its parameters are fitted."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fl_dpbayes.config.base import Config
from fl_dpbayes.config.plan import MIN_CLIP_NORM, Adjacency, Probability

DescentMethod = Literal["temperature", "vector", "platt"]
RecalibrationMethod = Literal[DescentMethod, "isotonic"]
# Far beyond any useful value: exp(10) = 22,026.
PARAMETER_BOUND = 10.0
Parameter = Annotated[float, Field(ge=-PARAMETER_BOUND, le=PARAMETER_BOUND)]
Parameters = Annotated[tuple[Parameter, ...], Field(min_length=1, max_length=2000)]
# Public constant: equal-width bins of a probability, the grid of an isotonic map.
ISOTONIC_BINS = 15


def parameter_count(method: RecalibrationMethod, classes: int) -> int:
    """Return how many parameters a map has.

    Args:
        method: of the map.
        classes: that it maps, 2 or more.

    Returns:
        `temperature`: 1. `vector`: 2 for each class. `platt`: 2. `isotonic`: 2 for each of ISOTONIC_BINS.

    Raises:
        ValueError: if the method is not for so many classes.
    """
    match method:
        case "temperature":
            return 1
        case "vector":
            return 2 * classes
        case "platt" if classes != 2:
            raise ValueError(
                f"method 'platt' is for two classes, here are {classes}: choose 'vector', its form for more classes"
            )
        case "platt":
            return 2
        case "isotonic":
            return 2 * ISOTONIC_BINS


class RecalibrationMap(Config):
    """A map of class probabilities.

    `temperature`: log T. `vector`: the log scales of all classes, then their biases. `platt`: log scale and bias of the
    log odds of class 1. Of these, all parameters 0 change nothing. `isotonic`: the positions of ISOTONIC_BINS knots,
    then their values; both in [0, 1] and neither ever falls.
    """

    method: RecalibrationMethod
    parameters: Parameters

    @model_validator(mode="after")
    def _knots_rise(self) -> "RecalibrationMap":
        if self.method != "isotonic":
            return self
        if len(self.parameters) != 2 * ISOTONIC_BINS:
            raise ValueError(f"an isotonic map has {2 * ISOTONIC_BINS} parameters, not {len(self.parameters)}")
        for knots in (self.parameters[:ISOTONIC_BINS], self.parameters[ISOTONIC_BINS:]):
            if knots[0] < 0 or knots[-1] > 1 or any(left > right for left, right in pairwise(knots)):
                raise ValueError("the knots of an isotonic map lie in [0, 1] and never fall")
        return self


class RecalibrationPlan(Config):
    """The fit of a map at each site: `steps` full-batch steps over all rounds, which cost `epsilon` together.

    Without `epsilon` the fit has no noise and no privacy, and a site takes part only if its policy says so. The step
    size falls linearly from `step_size` to 0 over the plan.
    """

    method: DescentMethod
    epsilon: PositiveFloat | None
    delta: Probability
    adjacency: Adjacency
    clip_norm: Annotated[float, Field(ge=MIN_CLIP_NORM)]
    steps: Annotated[int, Field(ge=1, le=10_000)]
    rounds: PositiveInt
    step_size: PositiveFloat

    @property
    def steps_per_round(self) -> int:
        """Steps that each round asks for."""
        return self.steps // self.rounds

    @model_validator(mode="after")
    def _rounds_divide_steps(self) -> "RecalibrationPlan":
        if self.steps % self.rounds:
            raise ValueError(f"rounds is {self.rounds}: it must divide steps, {self.steps}")
        return self


class CountingPlan(Config):
    """One count of bins at each site, released once at a cost of `epsilon`; the server fits an isotonic map to it.

    Without `epsilon` the count is exact and not private, and a site takes part only if its policy says so.
    """

    method: Literal["isotonic"] = "isotonic"
    epsilon: PositiveFloat | None
    delta: Probability
    adjacency: Adjacency
    steps: Literal[1] = 1
    rounds: Literal[1] = 1

    @property
    def steps_per_round(self) -> int:
        """The one count."""
        return self.steps


AnyRecalibrationPlan = Annotated[RecalibrationPlan | CountingPlan, Field(discriminator="method")]
