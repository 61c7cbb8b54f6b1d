"""How the noise multiplier sigma_t follows from the step size a_t, and the temperature T_t that results."""

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config.plan import NoiseCoupling

Array = npt.NDArray[np.float64]


def constant_noise(step_sizes: Array, noise_multiplier: float) -> Array:
    """Return sigma_t = sigma, the coupling of DP-SGD.

    Args:
        step_sizes: a_t, shape (T,), above zero.
        noise_multiplier: sigma, standard deviation of the noise on the sum over the clip norm, 0 or more.

    Returns:
        sigma_t, shape (T,).

    Source:
        Abadi et al. (2016), Algorithm 1.
    """
    return np.full(step_sizes.shape, float(noise_multiplier))


def temperature_noise(step_sizes: Array, temperature: float) -> Array:
    """Return sigma_t = sqrt(2 a_t tau), noise that falls as the step size decays.

    Args:
        step_sizes: a_t, shape (T,), above zero.
        temperature: tau, above zero.

    Returns:
        sigma_t, shape (T,).

    Source:
        Knolle et al., equations 8-9.
    """
    return np.sqrt(2.0 * step_sizes * temperature)


def langevin_noise(
    step_sizes: Array,
    temperature: float,
    *,
    clip_norm: float,
    expected_batch_size: float,
    units: int,
    friction: float = 1.0,
) -> Array:
    """Return sigma_t = (B / C) sqrt(2 alpha tau / (n a_t)), noise that rises as the step size decays.

    Args:
        step_sizes: a_t, shape (T,), above zero.
        temperature: tau, above zero: 1 is the posterior, 1/2 the algorithm of Zhang et al.
        clip_norm: C, above zero.
        expected_batch_size: B = q n, above zero.
        units: n, number of privacy units that the site declares, above zero.
        friction: alpha in (0, 1], the share of its momentum that the sampler loses in each step; 1 has no momentum.

    Returns:
        sigma_t, shape (T,).

    Source:
        Zhang et al., Algorithm 2 and Theorem 1 (tau = 1/2, alpha = 1); Chen, Fox and Guestrin (2014), equation 15.
    """
    return expected_batch_size / clip_norm * np.sqrt(2.0 * friction * temperature / (units * step_sizes))


def noise_multipliers(
    coupling: NoiseCoupling,
    *,
    step_sizes: Array,
    noise_multiplier: float | None,
    temperature: float | None,
    clip_norm: float,
    expected_batch_size: float,
    units: int,
    friction: float = 1.0,
) -> Array:
    """Return the noise multiplier of every step under a named coupling.

    `floor` is max(sigma, langevin at tau): the posterior at temperature tau, never less private than sigma.

    Args:
        coupling: `constant`, `temperature`, `langevin` or `floor`.
        step_sizes: a_t, shape (T,), above zero.
        noise_multiplier: sigma, used by `constant` and `floor`.
        temperature: tau, used by `temperature`, `langevin` and `floor`.
        clip_norm: C, above zero.
        expected_batch_size: B = q n, above zero.
        units: n, above zero.
        friction: alpha in (0, 1], used by `langevin` and `floor` so that tau is what the sampler samples at.

    Returns:
        sigma_t, shape (T,).

    Raises:
        ValueError: if the coupling needs a parameter that is None.
    """
    if coupling in ("constant", "floor") and noise_multiplier is None:
        raise ValueError(f"coupling {coupling!r} needs noise_multiplier: give it, or solve it from a budget")
    if coupling != "constant" and temperature is None:
        raise ValueError(f"coupling {coupling!r} needs temperature: give it, or solve it from a budget")
    if coupling == "constant":
        return constant_noise(step_sizes, noise_multiplier)  # type: ignore[arg-type]
    if coupling == "temperature":
        return temperature_noise(step_sizes, temperature)  # type: ignore[arg-type]
    langevin = langevin_noise(
        step_sizes,
        temperature,  # type: ignore[arg-type]
        clip_norm=clip_norm,
        expected_batch_size=expected_batch_size,
        units=units,
        friction=friction,
    )
    return langevin if coupling == "langevin" else np.maximum(noise_multiplier, langevin)  # type: ignore[arg-type]


def temperatures(
    step_sizes: Array,
    noise_multipliers: Array,
    *,
    clip_norm: float,
    expected_batch_size: float,
    units: int,
    friction: float = 1.0,
) -> Array:
    """Return the instantaneous temperatures T_t = a_t n sigma_t^2 C^2 / (2 alpha B^2), clipping and batch noise aside.

    Args:
        step_sizes: a_t, shape (T,).
        noise_multipliers: sigma_t, shape (T,).
        clip_norm: C, above zero.
        expected_batch_size: B = q n, above zero.
        units: n, above zero.
        friction: alpha in (0, 1]; gradient descent with momentum beta has 1 - beta.

    Returns:
        T_t, shape (T,); 1 is the Bayesian posterior.

    Source:
        Welling and Teh (2011), equation 4, with the step size a_t = eta_t n per unit; with friction, Chen, Fox and
        Guestrin (2014), equation 15.
    """
    return step_sizes * units * np.square(noise_multipliers * clip_norm / expected_batch_size) / (2.0 * friction)
