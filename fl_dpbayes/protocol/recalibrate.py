"""The recalibration request and its reply."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from fl_dpbayes.protocol.evaluate import Weights
from fl_dpbayes.protocol.recalibration import Parameters, RecalibrationPlan, parameter_count
from fl_dpbayes.protocol.record import Record
from fl_dpbayes.protocol.task import Model, Task
from fl_dpbayes.protocol.train import Digest, PrivacyStatement, RunId


class RecalibrateRequest(Record):
    """One round's share of a planned fit, on the predictions of the posterior `posterior/<name>` of shape (M, ...)."""

    protocol: Literal[1] = 1
    run: RunId
    round: PositiveInt
    task: Task
    model: Model
    weights: Weights
    arrays: Digest
    plan: RecalibrationPlan
    first_step: Annotated[int, Field(ge=0)]
    steps: PositiveInt
    start: Parameters
    ledger_head: Digest | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> "RecalibrateRequest":
        if self.first_step + self.steps > self.plan.steps:
            raise ValueError(
                f"first_step {self.first_step} + steps {self.steps} exceeds the plan's {self.plan.steps} steps"
            )
        expected = parameter_count(self.plan.method, self.task.classes)
        if len(self.start) != expected:
            raise ValueError(f"start has {len(self.start)} parameters, the method takes {expected}")
        return self


class RecalibrateReply(Record):
    """The parameters after the steps that the site's budget admitted; they are all that leaves the site."""

    protocol: Literal[1] = 1
    run: RunId
    round: PositiveInt
    request: Digest
    status: Literal["OK", "PARTIAL"]
    first_step: Annotated[int, Field(ge=0)]
    steps: PositiveInt
    parameters: Parameters
    privacy: PrivacyStatement
    ledger_head: Digest
