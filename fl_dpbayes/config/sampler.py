"""The algorithm of a site's chain, its step sizes and its prior: what a plan says of them.

An algorithm has one name where it is private (`dp-sgd`) and one where it is not (`sgd`); both run
the same code, the module of that name in `fl_dpbayes/samplers`. Whether a run is private follows
from the name alone.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveFloat

from fl_dpbayes.config.accepting import Accepting, Keys, default
from fl_dpbayes.config.registry import SAMPLER_GROUP, Choice, Registry
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import Config

# Far inside float32: the first product of a state would not be finite.
FirstStepSize = Annotated[float, Field(gt=0, le=1e30)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class ConstantStepSize(Config):
    """Step size a_t = initial."""

    kind: Literal["constant"] = "constant"
    initial: FirstStepSize


class ExponentialStepSize(Config):
    """Step size a_t = initial * decay^t."""

    kind: Literal["exponential"] = "exponential"
    initial: FirstStepSize
    decay: Annotated[float, Field(gt=0, le=1)]


class PolynomialStepSize(Config):
    """Step size a_t = initial * (1 + t / offset)^(-power)."""

    kind: Literal["polynomial"] = "polynomial"
    initial: FirstStepSize
    offset: PositiveFloat = 1.0
    power: Annotated[float, Field(ge=0, le=2)] = 0.33


def _number_as_constant(schedule: Any) -> Any:
    """Read a number as short for a constant step size."""
    if isinstance(schedule, int | float):
        return {"kind": "constant", "initial": schedule}
    return schedule


StepSizeSchedule = Annotated[
    ConstantStepSize | ExponentialStepSize | PolynomialStepSize,
    Field(discriminator="kind"),
    BeforeValidator(_number_as_constant),
]


class GaussianPrior(Config):
    """Prior p(w) = N(0, scale^2 I)."""

    kind: Literal["gaussian"] = "gaussian"
    scale: PositiveFloat = 1.0


class LaplacePrior(Config):
    """Prior p(w) proportional to exp(-|w|_1 / scale)."""

    kind: Literal["laplace"] = "laplace"
    scale: PositiveFloat = 1.0


class FlatPrior(Config):
    """Improper prior p(w) = 1."""

    kind: Literal["flat"] = "flat"


Prior = Annotated[GaussianPrior | LaplacePrior | FlatPrior, Field(discriminator="kind")]


class SamplerSettings(Choice):
    """What every algorithm has: step sizes, a prior, and what it says of itself.

    A chain's state is made of vectors as long as the model's parameter vector, all of them
    functions of noisy sums and public constants. `parameters` is the first, and the point
    predictor.

    Attributes:
        position: Vectors of the state that together are the chain's position.
        has_temperature: The update is linear, so it is Langevin dynamics at a temperature T_t
            that its noise gives it.
        only_descends: Without noise for a temperature its states are those of an optimiser, not
            posterior samples.
        rescales: Steps are scaled by earlier gradients, so that only the first moment is linear
            in them.
        draws_samples: Posterior samples are drawn at random from the state; they are not its
            positions.
        needs_hidden_units: It has nothing to do in a model without trained hidden units.
        implemented_by: The module with `build`, in a package that registers the sampler.
        step_size: The schedule of step sizes.
        prior: The prior p(w) of the parameters.
        kind: The algorithm's name, with `dp-` before it where the run is private.
    """

    position: ClassVar[tuple[str, ...]] = ("parameters",)
    has_temperature: ClassVar[bool] = False
    only_descends: ClassVar[bool] = False
    rescales: ClassVar[bool] = False
    draws_samples: ClassVar[bool] = False
    needs_hidden_units: ClassVar[bool] = False

    step_size: Accepting[StepSizeSchedule, float | Keys] = default(ConstantStepSize(initial=0.2))
    prior: Accepting[Prior, Keys] = default(GaussianPrior())
    kind: str

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Refuse an algorithm that would be private by its name and not by its plan.

        Raises:
            UserError: It says itself what follows from its kind.
        """
        super().__init_subclass__(**keywords)
        for name in ("algorithm", "is_private"):
            if getattr(cls, name) is not getattr(SamplerSettings, name):
                raise UserError(f"{cls.__name__} sets {name}: leave it out, its kind says it")

    @property
    def algorithm(self) -> str:
        """The algorithm's name, private or not."""
        return self.kind.removeprefix("dp-")

    @property
    def is_private(self) -> bool:
        """Whether the name is that of a private run."""
        return self.kind.startswith("dp-")

    @property
    def momentum_lost(self) -> float:
        """Friction alpha in (0, 1]: the share of the momentum that a step loses.

        It is 1 where there is no momentum.
        """
        return 1.0

    @property
    def moments(self) -> tuple[str, ...]:
        """Vectors of the state beside the position; they start at 0."""
        return ()

    @property
    def state_vectors(self) -> tuple[str, ...]:
        """All vectors of the state, in the order in which they travel."""
        return (*self.position, *self.moments)

    @property
    def start_values(self) -> Mapping[str, float]:
        """What vectors of the position other than `parameters` are filled with at the start."""
        return {}

    @property
    def weight_draws(self) -> int:
        """How many draws of the weights are held at once."""
        return 1

    @property
    def levers(self) -> dict[str, float]:
        """Settings that cool a chain beside smaller steps.

        Temperature goes as step size over friction.
        """
        return {}

    def state_shapes(
        self, parameter_shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays in which a state travels, in order.

        Args:
            parameter_shapes: Name of a parameter -> its shape.

        Returns:
            `<vector>/<parameter name>` -> shape.
        """
        return {
            f"{vector}/{name}": shape
            for vector in self.state_vectors
            for name, shape in parameter_shapes.items()
        }


SAMPLERS = Registry(SamplerSettings, SAMPLER_GROUP)
register_sampler = SAMPLERS.register
Sampler = Annotated[SamplerSettings, SAMPLERS]


@register_sampler
class SGLD(SamplerSettings):
    """Stochastic gradient Langevin dynamics."""

    has_temperature = True
    kind: Literal["sgld", "dp-sgld"] = "dp-sgld"


class MomentumSettings(SamplerSettings):
    """An algorithm with momentum; 0 is none."""

    momentum: Decay = 0.0

    @property
    def momentum_lost(self) -> float:
        """What a step does not keep of the momentum."""
        return 1.0 - self.momentum

    @property
    def moments(self) -> tuple[str, ...]:
        """The momentum, if any."""
        return ("momentum",) if self.momentum else ()

    @property
    def levers(self) -> dict[str, float]:
        """Less momentum."""
        return {"momentum": self.momentum} if self.momentum else {}


@register_sampler
class SGD(MomentumSettings):
    """Stochastic gradient descent with momentum beta.

    With noise on its gradients it is Hamiltonian Monte Carlo with friction 1 - beta, meant or not.
    """

    has_temperature = True
    only_descends = True
    kind: Literal["sgd", "dp-sgd"] = "dp-sgd"


@register_sampler
class Adam(SamplerSettings):
    """Adam on the private gradient; its moments are post-processing."""

    only_descends = True
    rescales = True
    kind: Literal["adam", "dp-adam"] = "dp-adam"
    first_decay: Decay = 0.9
    second_decay: Decay = 0.999
    stability: PositiveFloat = 1e-8

    @property
    def moments(self) -> tuple[str, ...]:
        """Decaying means of the noisy gradient and of its square."""
        return "first_moment", "second_moment"


@register_sampler
class SGHMC(SamplerSettings):
    """Stochastic gradient Hamiltonian Monte Carlo.

    `friction` is the share of the momentum lost in each step. At the same step size and privacy
    noise the chain is hotter than Langevin dynamics by 1 / friction.
    """

    has_temperature = True
    kind: Literal["sghmc", "dp-sghmc"] = "dp-sghmc"
    friction: Annotated[float, Field(gt=0, le=1)] = 0.5

    @property
    def momentum_lost(self) -> float:
        """Its friction."""
        return self.friction

    @property
    def moments(self) -> tuple[str, ...]:
        """The momentum."""
        return ("momentum",)

    @property
    def levers(self) -> dict[str, float]:
        """More friction."""
        return {"friction": self.friction} if self.friction < 1 else {}


@register_sampler
class BayesByBackprop(SamplerSettings):
    """Bayes by backprop: a Gaussian per weight, trained by gradient descent.

    Its mean and its spread are trained. `draws` weight draws are averaged before the clip;
    `initial_scale` is the standard deviation at the start.
    """

    position = ("parameters", "spread")
    draws_samples = True
    kind: Literal["bbp", "dp-bbp"] = "dp-bbp"
    draws: Annotated[int, Field(ge=1, le=64)] = 1
    initial_scale: PositiveFloat = 0.05

    @property
    def weight_draws(self) -> int:
        """Those that are averaged before the clip."""
        return self.draws

    @property
    def start_values(self) -> Mapping[str, float]:
        """The spread of the initial scale."""
        return {"spread": spread_of(self.initial_scale)}


@register_sampler
class MCDropout(MomentumSettings):
    """Gradient descent with dropout at `rate`, a mask per record.

    A posterior sample is one draw of masks.
    """

    draws_samples = True
    needs_hidden_units = True
    kind: Literal["mc-dropout", "dp-mc-dropout"] = "dp-mc-dropout"
    rate: Annotated[float, Field(gt=0, le=0.99)] = 0.5


def spread_of(scale: float) -> float:
    """Return the spread of a scale = log(1 + exp(spread)).

        spread = log(exp(scale) - 1)

    Args:
        scale: Standard deviation, > 0.
    """
    return scale + math.log(-math.expm1(-scale))
