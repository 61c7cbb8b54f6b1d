"""The algorithm of a site's chain, its step sizes and its prior: what a plan says of them.

An algorithm has one name where it is private (`dp-sgd`) and one where it is not (`sgd`); both run the same code, and a
plan's privacy settings must agree with the name.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from fl_dpbayes.config.base import Config

Slot = Literal["parameters", "momentum", "first_moment", "second_moment", "spread"]
Decay = Annotated[float, Field(ge=0, lt=1)]


class ConstantStepSize(Config):
    """Step size a_t = initial."""

    kind: Literal["constant"] = "constant"
    initial: PositiveFloat


class ExponentialStepSize(Config):
    """Step size a_t = initial * decay^t."""

    kind: Literal["exponential"] = "exponential"
    initial: PositiveFloat
    decay: Annotated[float, Field(gt=0, le=1)]


class PolynomialStepSize(Config):
    """Step size a_t = initial * (1 + t / offset)^(-power)."""

    kind: Literal["polynomial"] = "polynomial"
    initial: PositiveFloat
    offset: PositiveFloat = 1.0
    power: Annotated[float, Field(ge=0, le=2)] = 0.33


StepSizeSchedule = Annotated[ConstantStepSize | ExponentialStepSize | PolynomialStepSize, Field(discriminator="kind")]


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


class SamplerSettings(Config):
    """What every algorithm has: step sizes and a prior."""

    step_size: StepSizeSchedule
    prior: Prior = GaussianPrior()


class SGLD(SamplerSettings):
    """Stochastic gradient Langevin dynamics."""

    kind: Literal["sgld", "dp-sgld"] = "dp-sgld"


class SGD(SamplerSettings):
    """Stochastic gradient descent with momentum."""

    kind: Literal["sgd", "dp-sgd"]
    momentum: Decay = 0.0


class Adam(SamplerSettings):
    """Adam on the private gradient; its moments are post-processing."""

    kind: Literal["adam", "dp-adam"]
    first_decay: Decay = 0.9
    second_decay: Decay = 0.999
    stability: PositiveFloat = 1e-8


class SGHMC(SamplerSettings):
    """Stochastic gradient Hamiltonian Monte Carlo; `friction` is the share of the momentum lost in each step.

    At the same step size and privacy noise the chain is hotter than Langevin dynamics by 1 / friction.
    """

    kind: Literal["sghmc", "dp-sghmc"]
    friction: Annotated[float, Field(gt=0, le=1)] = 0.5


class BayesByBackprop(SamplerSettings):
    """Bayes by backprop: a Gaussian per weight, whose mean and spread are trained by gradient descent.

    `draws` weight draws are averaged before the clip; `initial_scale` is the standard deviation at the start.
    """

    kind: Literal["bbp", "dp-bbp"]
    draws: Annotated[int, Field(ge=1, le=64)] = 1
    initial_scale: PositiveFloat = 0.05


class MCDropout(SamplerSettings):
    """Gradient descent with dropout at `rate`, a mask per record; each posterior sample is one draw of masks."""

    kind: Literal["mc-dropout", "dp-mc-dropout"]
    rate: Annotated[float, Field(gt=0, le=0.99)] = 0.5
    momentum: Decay = 0.0


Sampler = Annotated[SGLD | SGD | Adam | SGHMC | BayesByBackprop | MCDropout, Field(discriminator="kind")]


def state_slots(sampler: Sampler) -> tuple[Slot, ...]:
    """Name the vectors of a chain's state, each as long as the model's parameter vector.

    All of them are functions of noisy sums and public constants. `parameters` comes first and is the point predictor.

    Args:
        sampler: the plan's algorithm.

    Returns:
        Names in the order in which they are laid out.
    """
    match sampler:
        case Adam():
            return "parameters", "first_moment", "second_moment"
        case SGHMC():
            return "parameters", "momentum"
        case BayesByBackprop():
            return "parameters", "spread"
        case SGD(momentum=momentum) | MCDropout(momentum=momentum) if momentum > 0:
            return "parameters", "momentum"
        case _:
            return ("parameters",)


def state_shapes(sampler: Sampler, parameter_shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the arrays in which a chain's state travels.

    Args:
        sampler: the plan's algorithm.
        parameter_shapes: of the plain model, in the order of its parameter vector.

    Returns:
        `<slot>/<parameter name>` -> shape.
    """
    return {f"{slot}/{name}": shape for slot in state_slots(sampler) for name, shape in parameter_shapes.items()}


def friction(sampler: Sampler) -> float:
    """Return the share of the momentum that a step of the sampler loses, 1 where it has none.

    Gradient descent with momentum beta is stochastic gradient Hamiltonian Monte Carlo with friction 1 - beta.
    """
    match sampler:
        case SGHMC():
            return sampler.friction
        case SGD() | MCDropout():
            return 1.0 - sampler.momentum
        case _:
            return 1.0


def has_temperature(sampler: Sampler) -> bool:
    """Say whether the sampler is Langevin dynamics at some temperature, so that T_t of its steps means something."""
    return sampler.kind.removeprefix("dp-") in ("sgld", "sgd", "sghmc")
