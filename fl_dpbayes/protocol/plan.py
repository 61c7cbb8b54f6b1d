"""The plan of a whole training run, fixed in its first request."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fl_dpbayes.protocol.record import Record

Adjacency = Literal["add_or_remove_one", "replace_one"]
NoiseCoupling = Literal["constant", "temperature", "langevin", "floor"]
Probability = Annotated[float, Field(gt=0, lt=1)]
MAX_STEPS = 1_000_000
# Far below it float32 holds neither the squares of the gradients that are to be clipped nor the noise on their sum.
MIN_CLIP_NORM = 1e-6


class ConstantStepSize(Record):
    """Step size a_t = initial."""

    kind: Literal["constant"] = "constant"
    initial: PositiveFloat


class ExponentialStepSize(Record):
    """Step size a_t = initial * decay^t."""

    kind: Literal["exponential"] = "exponential"
    initial: PositiveFloat
    decay: Annotated[float, Field(gt=0, le=1)]


class PolynomialStepSize(Record):
    """Step size a_t = initial * (1 + t / offset)^(-power)."""

    kind: Literal["polynomial"] = "polynomial"
    initial: PositiveFloat
    offset: PositiveFloat = 1.0
    power: Annotated[float, Field(ge=0, le=2)] = 0.33


StepSizeSchedule = Annotated[ConstantStepSize | ExponentialStepSize | PolynomialStepSize, Field(discriminator="kind")]


class GaussianPrior(Record):
    """Prior p(w) = N(0, scale^2 I)."""

    kind: Literal["gaussian"] = "gaussian"
    scale: PositiveFloat = 1.0


class FlatPrior(Record):
    """Improper prior p(w) = 1."""

    kind: Literal["flat"] = "flat"


Prior = Annotated[GaussianPrior | FlatPrior, Field(discriminator="kind")]


class PrivacyPlan(Record):
    """What the mechanism adds and what the run may cost at a site.

    Where the free parameter of the coupling (`noise_multiplier` for `constant` and `floor`, `temperature` for
    `temperature` and `langevin`) is absent, the site solves it so that the last planned step meets `epsilon`.
    """

    epsilon: PositiveFloat
    delta: Probability
    adjacency: Adjacency = "add_or_remove_one"
    coupling: NoiseCoupling = "constant"
    noise_multiplier: Annotated[float, Field(gt=0)] | None = None
    temperature: PositiveFloat | None = None
    clip_norm: Annotated[float, Field(ge=MIN_CLIP_NORM)] = 1.0
    sampling_rate: Annotated[float, Field(gt=0, le=1)]
    pre_noise: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _parameters_fit_coupling(self) -> "PrivacyPlan":
        if self.coupling == "constant" and self.temperature is not None:
            raise ValueError("temperature is not used by coupling 'constant': remove it or choose 'floor'")
        if self.coupling in ("temperature", "langevin") and self.noise_multiplier is not None:
            raise ValueError(
                f"noise_multiplier is not used by coupling '{self.coupling}': give temperature, or leave both out "
                "to have it solved from epsilon"
            )
        if self.coupling == "floor" and self.temperature is None:
            raise ValueError("coupling 'floor' needs temperature (1.0 is the Bayesian posterior)")
        return self


class TrainingPlan(Record):
    """Everything about a run's chain that is fixed before its first step."""

    rounds: PositiveInt
    steps_per_round: PositiveInt
    burn_in: Annotated[int, Field(ge=0)]
    thinning: PositiveInt
    step_size: StepSizeSchedule
    prior: Prior
    prior_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    privacy: PrivacyPlan
    chain_start: Literal["broadcast", "own_last"]

    @property
    def total_steps(self) -> int:
        """Number of steps in the whole run."""
        return self.rounds * self.steps_per_round

    @model_validator(mode="after")
    def _lengths_fit(self) -> "TrainingPlan":
        if self.total_steps > MAX_STEPS:
            raise ValueError(f"rounds * steps_per_round is {self.total_steps}: at most {MAX_STEPS} steps are accounted")
        if self.burn_in + self.thinning > self.total_steps:
            raise ValueError(
                f"burn_in {self.burn_in} + thinning {self.thinning} exceeds the {self.total_steps} planned steps, so "
                "no sample would be kept: lower burn_in or thinning, or add rounds"
            )
        return self

    def is_kept(self, step: int) -> bool:
        """Say whether the state after `step` (0-based) is kept as a posterior sample."""
        return step + 1 > self.burn_in and (step + 1 - self.burn_in) % self.thinning == 0

    def kept_before(self, step: int) -> int:
        """Count the samples that are kept before step `step` (0-based) of the run."""
        return max(0, step - self.burn_in) // self.thinning
