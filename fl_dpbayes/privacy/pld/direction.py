"""The composed privacy loss in one direction, as the transform of its tilted masses."""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, rfft
from scipy.signal import lfilter

from fl_dpbayes.privacy.pld.discretise import LossMass
from fl_dpbayes.privacy.pld.tilt import ABOVE


@dataclass(frozen=True, eq=False)
class Direction:
    """The tilted transform of the composed loss in one direction.

    Attributes:
        order: lambda.
        spectrum: transform of the normalised tilted masses, composed, shape (size // 2 + 1,).
        size: number of grid points of the window.
        cumulant: K = log of the composed mass before normalisation.
        infinite: mass at an infinite loss, summed over the steps.
        steps: how many steps are composed.
    """

    order: float
    spectrum: npt.NDArray[np.complex128]
    size: int
    cumulant: float = 0.0
    infinite: float = 0.0
    steps: int = 0

    def after(self, loss: LossMass, steps: int, spacing: float) -> "Direction":
        """Compose `steps` more steps with the given discrete loss."""
        index = np.arange(loss.first, loss.first + loss.mass.size)
        with np.errstate(divide="ignore", under="ignore", invalid="ignore"):
            exponent = np.log(loss.mass) + self.order * spacing * index
            largest = exponent.max()
            tilted = np.exp(exponent - largest)
            total = tilted.sum()
            wrapped = np.bincount(index % self.size, weights=tilted / total, minlength=self.size)
            transform = rfft(wrapped)
            spectrum = self.spectrum * (transform if steps == 1 else transform**steps)
        return replace(
            self,
            spectrum=spectrum,
            cumulant=self.cumulant + steps * (float(largest) + math.log(total)),
            infinite=self.infinite + steps * loss.infinite,
            steps=self.steps + steps,
        )

    def epsilon(self, delta: float, spacing: float) -> float:
        """Return the smallest epsilon in the window whose delta, errors included, is at most delta; else infinity."""
        order = self.order
        highest = (self.cumulant - math.log(delta) + ABOVE) / order
        first = math.ceil(highest / spacing) - self.size
        index = np.arange(first, first + self.size)
        tilted = np.maximum(irfft(self.spectrum, self.size)[index % self.size], 0.0)
        chernoff = np.exp(self.cumulant - order * spacing * index)
        above = np.cumsum((chernoff * tilted)[::-1])[::-1] - chernoff * tilted
        # delta_m = sum_{k > m} p_k (1 - exp(e_m - e_k)) obeys delta_m = (1 - g) sum_{k > m} p_k + g delta_{m+1}
        decay = math.exp(-spacing)
        deltas = lfilter([1.0], [1.0, -decay], -math.expm1(-spacing) * above[::-1])[::-1]
        beyond = math.exp(self.cumulant - order * spacing * (first + self.size))
        deltas = deltas + self._rounding() * chernoff + beyond + self.infinite
        enough = np.flatnonzero(deltas <= delta)
        if enough.size == 0:
            return math.inf
        m = int(enough[0])
        if m == 0:
            return max(0.0, first * spacing)
        # Between grid points delta is linear in exp(epsilon).
        share = (deltas[m - 1] - delta) / (deltas[m - 1] - deltas[m])
        with np.errstate(divide="ignore"):
            beyond_last = np.logaddexp(np.log1p(-share), np.log(share) + spacing)
        return max(0.0, (first + m - 1) * spacing + float(beyond_last))

    def _rounding(self) -> float:
        """Bound the error of a weighted tail sum of the tilted masses, as a share of exp(K - lambda epsilon).

        Each transform errs by at most g = u (8 log2(size) + 128) in every frequency (128 u: the masses themselves), a
        product of T of them by T g. The tail weights rise from 0 and fall again, so their transform has an l1 norm of
        at most 2 (2 + (2/pi) log(size)) size; the transform back errs by g sum |spectrum| in all.
        """
        unit = np.finfo(np.float64).eps / 2
        g = unit * (8 * math.log2(self.size) + 128)
        return g * (self.steps * 2 * (2 + 2 / math.pi * math.log(self.size)) + 2 * float(np.abs(self.spectrum).sum()))
