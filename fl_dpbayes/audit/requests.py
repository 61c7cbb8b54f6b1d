"""The requests that an auditor sends: what a server may ask of a site, and nothing else."""

from dataclasses import dataclass

from fl_dpbayes.config import AnyRecalibrationPlan, Model, Task, TrainingPlan
from fl_dpbayes.protocol import (
    Arrays,
    EvaluateRequest,
    RecalibrateRequest,
    TrainRequest,
    arrays_digest,
    prefixed,
)


@dataclass(frozen=True)
class Stretch:
    """Steps of a plan that one request asks for.

    Attributes:
        round_number: From 1.
        first_step: From 0.
        steps: One or more.
    """

    round_number: int
    first_step: int
    steps: int


def stretches_of(plan: TrainingPlan, length: int) -> list[Stretch]:
    """Divide a plan into stretches, each in a round of its own.

    Args:
        plan: Whose steps are divided.
        length: Steps of each stretch.

    Returns:
        All stretches in order.
    """
    return [
        Stretch(round_number=first_step // length + 1, first_step=first_step, steps=length)
        for first_step in range(0, plan.total_steps, length)
    ]


def train_request(
    task: Task, model: Model, plan: TrainingPlan, stretch: Stretch, start: Arrays, run: int
) -> TrainRequest:
    """Ask for a stretch of training.

    Args:
        task: Of the site's records.
        model: To be trained.
        plan: Of the whole run.
        stretch: The steps.
        start: The state's arrays by name.
        run: The number that names the run.

    Returns:
        The request; the start is sent with it under `start`.
    """
    return TrainRequest(
        run=f"{run:032x}",
        round=stretch.round_number,
        task=task,
        model=model,
        plan=plan,
        first_step=stretch.first_step,
        steps=stretch.steps,
        start=arrays_digest(start),
    )


@dataclass(frozen=True)
class PosteriorRequests:
    """Requests about a posterior of one sample.

    Attributes:
        task: Of the site's records.
        model: Of the posterior.
        sample: Parameter name -> array of the parameter's shape.
    """

    task: Task
    model: Model
    sample: Arrays

    @property
    def arrays(self) -> Arrays:
        """What is sent with each request."""
        return prefixed("posterior", {name: array[None] for name, array in self.sample.items()})

    def evaluate(
        self, run: int, delta: float, noise_multiplier: float | None = None
    ) -> EvaluateRequest:
        """Ask for an evaluation.

        Args:
            run: The number that names the run.
            delta: At which noise is accounted.
            noise_multiplier: Of the noise; None where exact sums are asked for.

        Returns:
            The request.
        """
        return EvaluateRequest(
            run=f"{run:032x}",
            round=1,
            task=self.task,
            model=self.model,
            arrays=arrays_digest(self.arrays),
            predictors={"posterior": (1.0,)},
            delta=delta,
            noise_multiplier=noise_multiplier,
        )

    def recalibrate(
        self,
        run: int,
        plan: AnyRecalibrationPlan,
        *,
        first_step: int = 0,
        steps: int = 1,
        parameters: int | None = None,
    ) -> RecalibrateRequest:
        """Ask for counts of bins, or for a stretch of a descent from 0.

        Args:
            run: The number that names the run.
            plan: Of the whole fit.
            first_step: From 0.
            steps: One or more.
            parameters: Number of them that a descent fits; None for counts.

        Returns:
            The request.
        """
        return RecalibrateRequest(
            run=f"{run:032x}",
            round=first_step + 1,
            task=self.task,
            model=self.model,
            arrays=arrays_digest(self.arrays),
            weights=(1.0,),
            plan=plan,
            first_step=first_step,
            steps=steps,
            start=None if parameters is None else (0.0,) * parameters,
        )
