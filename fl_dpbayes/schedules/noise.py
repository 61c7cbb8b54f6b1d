"""How the noise multiplier sigma_t follows from the step size a_t, and the temperature T_t."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import NoiseCoupling

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class NoiseScale:
    """What turns a noise multiplier into a temperature.

    Attributes:
        clip_norm: C > 0, or 1 where nothing is private and sigma is the noise's standard deviation.
        expected_batch_size: B = q n > 0.
        units: n > 0, as declared.
        friction: alpha in (0, 1], the share of its momentum that the sampler loses in each step.
            1 has no momentum; gradient descent with momentum beta has 1 - beta.
    """

    clip_norm: float
    expected_batch_size: float
    units: int
    friction: float = 1.0

    def langevin_noise(self, step_sizes: Array, temperature: float) -> Array:
        """Return the Langevin noise multipliers, which rise as the step size decays.

            sigma_t = (B / C) sqrt(2 alpha tau / (n a_t))

        Args:
            step_sizes: a_t > 0, shape (T,).
            temperature: tau > 0; 1 is the posterior, 1/2 the algorithm of Zhang et al.

        Returns:
            sigma_t > 0, shape (T,).

        Source:
            Zhang et al., Algorithm 2 and Theorem 1 (tau = 1/2, alpha = 1); Chen, Fox and Guestrin
            (2014), eq. 15.
        """
        spread = np.sqrt(2.0 * self.friction * temperature / (self.units * step_sizes))
        return self.expected_batch_size / self.clip_norm * spread

    def temperatures(self, step_sizes: Array, noise_multipliers: Array) -> Array:
        """Return the temperature of every step, clipping and batch noise aside.

            T_t = a_t n sigma_t^2 C^2 / (2 alpha B^2)

        Args:
            step_sizes: a_t > 0, shape (T,).
            noise_multipliers: sigma_t >= 0, shape (T,).

        Returns:
            T_t >= 0, shape (T,); 1 is the posterior.

        Source:
            Welling and Teh (2011), eq. 4, with a_t = eta_t n per unit; Chen, Fox and Guestrin
            (2014), eq. 15.
        """
        squares = np.square(noise_multipliers * self.clip_norm / self.expected_batch_size)
        return step_sizes * self.units * squares / (2.0 * self.friction)


def noise_multipliers(
    coupling: NoiseCoupling,
    step_sizes: Array,
    scale: NoiseScale,
    noise_multiplier: float | None = None,
    temperature: float | None = None,
) -> Array:
    """Return the noise multiplier of every step under a named coupling.

        constant      sigma_t = sigma
        temperature   sigma_t = sqrt(2 a_t tau), which falls with the step size
        langevin      sigma_t = `NoiseScale.langevin_noise` at tau
        floor         sigma_t = max(sigma, langevin): the posterior at temperature tau, never less
                      private than sigma

    Args:
        coupling: One of these four names.
        step_sizes: a_t > 0, shape (T,).
        scale: C, B, n and friction of the site.
        noise_multiplier: sigma >= 0, which `constant` and `floor` need.
        temperature: tau > 0, which all but `constant` need.

    Returns:
        sigma_t >= 0, shape (T,).

    Raises:
        ValueError: If the coupling needs one that is None.

    Source:
        Abadi et al. (2016), Algorithm 1 (constant); Knolle et al., equations 8-9 (temperature).
    """
    if coupling in ("constant", "floor"):
        sigma = _require(noise_multiplier, "noise_multiplier", coupling)
        if coupling == "constant":
            return np.full(step_sizes.shape, float(sigma))
        tau = _require(temperature, "temperature", coupling)
        return np.maximum(sigma, scale.langevin_noise(step_sizes, tau))
    tau = _require(temperature, "temperature", coupling)
    if coupling == "temperature":
        return np.sqrt(2.0 * step_sizes * tau)
    return scale.langevin_noise(step_sizes, tau)


def _require(value: float | None, name: str, coupling: NoiseCoupling) -> float:
    if value is None:
        raise ValueError(f"coupling {coupling!r} needs {name}: give it, or solve it from a budget")
    return value
