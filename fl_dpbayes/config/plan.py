"""The plan of a whole training run, fixed in its first request."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from fl_dpbayes.config.accepting import Accepting, Keys, default
from fl_dpbayes.config.sampler import Sampler
from fl_dpbayes.files import Config


# Every rule bounds a unit's contribution by the clip norm C in the Euclidean norm over all
# parameters, whatever the data, so the sensitivity is C and the account of the noise is the same
# under each.
class FlatClipping(Config):
    """Factor min(1, C / |g|) (Abadi et al. 2016, Algorithm 1)."""

    kind: Literal["flat"] = "flat"


class GlobalClipping(Config):
    """Factor C / Z if |g| <= Z, falling linearly to 0 at 2 Z (Bu et al. 2021, global clipping).

    Every gradient within the bound Z >= C is scaled alike, so that their directions' mixture stays
    as it was. In the paper the factor is 0 beyond Z; a factor that dropped to 0 at once would let
    the last bit of a norm move a contribution by C.
    """

    kind: Literal["global"] = "global"
    bound: PositiveFloat


class AutomaticClipping(Config):
    """Factor C / (|g| + stability) (Bu et al. 2022, AUTO-S).

    Every gradient is normalised; none keeps its length.
    """

    kind: Literal["automatic"] = "automatic"
    # Far below it float32 holds neither a gradient's squares nor the factor of a gradient that
    # vanishes.
    stability: Annotated[float, Field(ge=1e-6)] = 0.01


class PerLayerClipping(Config):
    """Factor min(1, C / (sqrt(L) |g_l|)) for each of L layers (McMahan et al. 2018, section 3.2).

    A layer is a module that owns trainable parameters: its weight and bias together.
    """

    kind: Literal["per-layer"] = "per-layer"


Clipping = Annotated[
    FlatClipping | GlobalClipping | AutomaticClipping | PerLayerClipping,
    Field(discriminator="kind"),
]

FLAT = FlatClipping()
Adjacency = Literal["add_or_remove_one", "replace_one"]
ChainStart = Literal["broadcast", "own_last"]
NoiseCoupling = Literal["constant", "temperature", "langevin", "floor"]
Probability = Annotated[float, Field(gt=0, lt=1)]
SamplingRate = Annotated[float, Field(gt=0, le=1)]
MAX_STEPS = 1_000_000
# Far below it float32 holds neither the squares of the gradients that are to be clipped nor the
# noise on their sum.
MIN_CLIP_NORM = 1e-6


def _check_clipping(clipping: Clipping, clip_norm: float | None) -> None:
    if isinstance(clipping, GlobalClipping | AutomaticClipping) and clip_norm is None:
        raise ValueError(
            f"clipping.kind {clipping.kind!r} scales every gradient to clip_norm: give clip_norm"
        )
    if (
        isinstance(clipping, GlobalClipping)
        and clip_norm is not None
        and clipping.bound < clip_norm
    ):
        raise ValueError(
            f"clipping.bound is {clipping.bound}: it must be at least clip_norm, {clip_norm}"
        )


class PrivacyPlan(Config):
    """What the mechanism adds and what the run may cost at a site, for a private sampler.

    Where the free parameter of the coupling (`noise_multiplier` for `constant` and `floor`,
    `temperature` for `temperature` and `langevin`) is absent, the site solves it so that the last
    planned step meets `epsilon`.
    """

    epsilon: PositiveFloat = Field(
        description="or choose a sampler.kind without 'dp-' if nothing is to be protected"
    )
    delta: Probability = Field(description="below 1 / n for n privacy units")
    adjacency: Adjacency = "add_or_remove_one"
    coupling: NoiseCoupling = "constant"
    noise_multiplier: Annotated[float, Field(gt=0)] | None = None
    temperature: PositiveFloat | None = None
    clip_norm: Annotated[float, Field(ge=MIN_CLIP_NORM)] = 1.0
    clipping: Accepting[Clipping, Keys] = default(FlatClipping())
    sampling_rate: SamplingRate
    pre_noise: Annotated[float, Field(ge=0)] = 0.0

    @property
    def noise_unit(self) -> float:
        """What a noise multiplier is a multiple of: the clip norm."""
        return self.clip_norm

    def _check_keys(self) -> None:
        _check_clipping(self.clipping, self.clip_norm)
        if self.coupling == "constant" and self.temperature is not None:
            raise ValueError(
                "temperature is not used by coupling 'constant': remove it or choose 'floor'"
            )
        if self.coupling in ("temperature", "langevin") and self.noise_multiplier is not None:
            raise ValueError(
                f"noise_multiplier is not used by coupling {self.coupling!r}: give "
                "temperature or neither"
            )
        if self.coupling == "floor" and self.temperature is None:
            raise ValueError("coupling 'floor' needs temperature (1.0 is the Bayesian posterior)")


class Privacy(PrivacyPlan):
    """A `PrivacyPlan` of which only `epsilon` and `delta` must be given.

    A chain of one's own then samples the posterior, at temperature 1; where the budget asks for
    more noise, it is as much hotter. `simulate` takes only what was given.
    """

    epsilon: PositiveFloat = Field(
        description="the most that may be spent, also beside noise_multiplier: write "
        "fl.Privacy(epsilon=4, delta=1e-4)"
    )
    coupling: NoiseCoupling = "floor"
    temperature: PositiveFloat | None = 1.0
    sampling_rate: SamplingRate = 0.1

    @model_validator(mode="before")
    @classmethod
    def _at_temperature_1_by_a_floor(cls, content: Any) -> Any:
        if isinstance(content, dict) and content.get("coupling", "floor") != "floor":
            return {"temperature": None} | content
        return content

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show what was given: `simulate` takes no other key."""
        for name, value in super().__repr_args__():
            if name in self.model_fields_set and value is not None:
                yield name, value


class NoPrivacyPlan(Config):
    """A run without privacy, for reference, by a sampler without `dp-`: epsilon is infinite.

    A site takes part only if its policy says so. Without `clip_norm` nothing is clipped. The noise
    on the sum has the given `noise_standard_deviation`, or that of Langevin dynamics at
    `temperature`; with neither there is none. Clip or noise alone are ablations.
    """

    sampling_rate: SamplingRate = 0.5
    clip_norm: Annotated[float, Field(ge=MIN_CLIP_NORM)] | None = None
    clipping: Accepting[Clipping, Keys] = default(FlatClipping())
    noise_standard_deviation: Annotated[float, Field(ge=0)] = 0.0
    temperature: PositiveFloat | None = None
    delta: Probability = 1e-5
    adjacency: Adjacency = "add_or_remove_one"

    epsilon: ClassVar[float] = math.inf
    # No noise is raised or shaped for privacy.
    coupling: ClassVar[str] = ""
    # Noise before the clip is a part of private training only.
    pre_noise: ClassVar[float] = 0.0
    # A noise multiplier is the noise's standard deviation on the sum.
    noise_unit: ClassVar[float] = 1.0

    def _check_keys(self) -> None:
        _check_clipping(self.clipping, self.clip_norm)
        if self.noise_standard_deviation > 0 and self.temperature is not None:
            raise ValueError(
                "noise_standard_deviation and temperature both fix the noise: give one of them"
            )


# By whether the sampler is private.
PRIVACY_RECORDS: dict[bool, type[PrivacyPlan | NoPrivacyPlan]] = {
    True: PrivacyPlan,
    False: NoPrivacyPlan,
}


def _privacy_of_sampler(
    value: Any, read_either: ValidatorFunctionWrapHandler, info: ValidationInfo
) -> PrivacyPlan | NoPrivacyPlan:
    """Read the privacy of a run, which is private where its sampler is.

    Keys that only the other record has are refused by the sampler that does not have them.
    """
    sampler = info.data.get("sampler")
    if sampler is None:
        # The whole record is refused for its sampler.
        return read_either(value)
    record = PRIVACY_RECORDS[sampler.is_private]
    other_record = PRIVACY_RECORDS[not sampler.is_private]
    state = "private" if sampler.is_private else "not private"
    if isinstance(value, other_record):
        value = value.model_dump(exclude_unset=True)
    keys = value if isinstance(value, Mapping) else {}
    if "kind" in keys:
        raise ValueError(
            f"remove the key kind: sampler.kind {sampler.kind!r} says that the run is {state}"
        )
    other_keys = other_record.model_fields.keys() - record.model_fields.keys()
    misplaced = [key for key in keys if key in other_keys]
    if misplaced:
        other_kind = sampler.algorithm
        condition = ""
        if not sampler.is_private:
            other_kind = f"dp-{sampler.algorithm}"
            condition = " if nothing is to be protected"
        raise ValueError(
            f"sampler.kind {sampler.kind!r} is {state}: choose {other_kind!r}, or remove "
            f"{', '.join(misplaced)}{condition}"
        )
    return record.model_validate(value)


AnyPrivacyPlan = Annotated[PrivacyPlan | NoPrivacyPlan, WrapValidator(_privacy_of_sampler)]


class TrainingPlan(Config):
    """Everything about a run's chains that is fixed before their first step.

    The chains run in turn, each of `rounds * steps_per_round` steps with the schedule from its
    start; `burn_in` and `thinning` hold for each. All of them are one account. Their prior is to
    the power `prior_share`.
    """

    rounds: PositiveInt
    steps_per_round: PositiveInt
    chains: Annotated[int, Field(ge=1, le=1000)] = 1
    burn_in: Annotated[int, Field(ge=0)]
    thinning: PositiveInt
    sampler: Sampler
    prior_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    privacy: AnyPrivacyPlan
    chain_start: ChainStart

    @property
    def chain_steps(self) -> int:
        """Number of steps in each chain."""
        return self.rounds * self.steps_per_round

    @property
    def total_steps(self) -> int:
        """Number of steps in the whole run, all chains together."""
        return self.chains * self.chain_steps

    @property
    def total_rounds(self) -> int:
        """Number of rounds in the whole run, all chains together."""
        return self.chains * self.rounds

    def _check_keys(self) -> None:
        if self.total_steps > MAX_STEPS:
            raise ValueError(
                f"chains * rounds * steps_per_round is {self.total_steps}: allowed are "
                f"{MAX_STEPS} steps"
            )
        if self.burn_in + self.thinning > self.chain_steps:
            problem = (
                f"burn_in {self.burn_in} + thinning {self.thinning} exceeds the "
                f"{self.chain_steps} planned steps"
            )
            raise ValueError(
                f"{problem}, so no sample would be kept: lower burn_in or thinning, or add rounds"
            )

    def is_kept(self, step: int) -> bool:
        """Return whether the state after a step is kept as a posterior sample.

        Args:
            step: Number of the step in the whole run, from 0.
        """
        steps_done = step % self.chain_steps + 1
        return steps_done > self.burn_in and (steps_done - self.burn_in) % self.thinning == 0

    def kept_before(self, step: int) -> int:
        """Count the samples that are kept before a step.

        Args:
            step: Number of the step in the whole run, from 0.
        """
        whole_chains, steps_of_chain = divmod(step, self.chain_steps)
        samples_per_chain = self._samples_after(self.chain_steps)
        return whole_chains * samples_per_chain + self._samples_after(steps_of_chain)

    def _samples_after(self, steps: int) -> int:
        """Count the samples of the first `steps` steps of a chain."""
        return max(0, steps - self.burn_in) // self.thinning


def check_temperature(sampler: Sampler, privacy: AnyPrivacyPlan) -> None:
    """Check that noise is shaped or raised for a temperature only where the sampler has one.

    Raises:
        ValueError: It is not so; the error names the key and the remedy.
    """
    if sampler.has_temperature:
        return
    if isinstance(privacy, NoPrivacyPlan):
        if privacy.temperature is not None:
            has_none = f"sampler.kind {sampler.kind!r} has none"
            raise ValueError(
                f"privacy.temperature is {privacy.temperature:g}: {has_none}: remove it, or "
                "choose 'sgld'"
            )
    elif privacy.coupling != "constant":
        problem = (
            f"privacy.coupling is {privacy.coupling!r}, and sampler.kind {sampler.kind!r} has "
            "no temperature"
        )
        remedy = "set privacy.coupling = 'constant' and remove privacy.temperature"
        raise ValueError(
            f"{problem}: {remedy}, or choose sampler.kind 'dp-sgld', 'dp-sgd' or 'dp-sghmc'"
        )
