"""The recalibration request and its reply."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from fl_dpbayes.config import AnyRecalibrationPlan, CountingPlan, Parameters, parameter_count
from fl_dpbayes.protocol.evaluate import Weights
from fl_dpbayes.protocol.train import Digest, StageRequest, StepsReply


class RecalibrateRequest(StageRequest):
    """One round's share of a planned fit to the posterior `posterior/<name>`, (M, ...).

    A descent starts at `start`.
    """

    protocol: Literal[1] = 1
    weights: Weights
    arrays: Digest
    plan: AnyRecalibrationPlan
    first_step: Annotated[int, Field(ge=0)]
    steps: PositiveInt
    start: Parameters | None = None

    def _check_keys(self) -> None:
        if self.first_step + self.steps > self.plan.steps:
            raise ValueError(
                f"first_step {self.first_step} + steps {self.steps} exceeds the plan's "
                f"{self.plan.steps}"
            )
        expected = 0
        if not isinstance(self.plan, CountingPlan):
            expected = parameter_count(self.plan.method, self.task.outcome)
        count = len(self.start or ())
        if count != expected:
            raise ValueError(f"start has {count} parameters, the method takes {expected}")


class RecalibrateReply(StepsReply):
    """Parameters after the admitted steps, or sums of bins in the array `noised`.

    Attributes:
        parameters: Of a descent.
        noise_std: The standard deviation of the Gaussian noise on the sums.
    """

    parameters: Parameters | None = None
    noise_std: Annotated[float, Field(ge=0)] | None = None

    def _check_keys(self) -> None:
        if (self.parameters is None) == (self.noise_std is None):
            raise ValueError("give either parameters or noise_std")
