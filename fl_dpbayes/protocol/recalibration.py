"""What recalibration does to predictions, and the plan by which its parameters are fitted."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fl_dpbayes.protocol.plan import MIN_CLIP_NORM, Adjacency, Probability
from fl_dpbayes.protocol.record import Record

RecalibrationMethod = Literal["temperature", "vector"]
# Far beyond any useful value: exp(10) = 22,026.
PARAMETER_BOUND = 10.0
Parameter = Annotated[float, Field(ge=-PARAMETER_BOUND, le=PARAMETER_BOUND)]
Parameters = Annotated[tuple[Parameter, ...], Field(min_length=1, max_length=2000)]


def parameter_count(method: RecalibrationMethod, classes: int) -> int:
    """Return how many parameters a map for `classes` classes has: log T; or a log scale and a bias for each class."""
    return 1 if method == "temperature" else 2 * classes


class RecalibrationMap(Record):
    """A map of class probabilities; all parameters 0 change nothing.

    `temperature`: log T. `vector`: the log scales of all classes, then their biases.
    """

    method: RecalibrationMethod
    parameters: Parameters


class RecalibrationPlan(Record):
    """The fit of a map at each site: `steps` full-batch steps over all rounds, which cost `epsilon` together.

    Without `epsilon` the fit has no noise and no privacy, and a site takes part only if its policy says so. The step
    size falls linearly from `step_size` to 0 over the plan.
    """

    method: RecalibrationMethod
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
