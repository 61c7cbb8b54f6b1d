"""Two Gaussian classes whose Bayes probability is known, and the exact calibration of a linear model on them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from scipy.stats import norm

Floats = npt.NDArray[np.float64]

# Class means; each class is N(mean, I) and has half of the records.
MEANS: Floats = np.array([[0.0, 1.5], [1.5, 0.0]])
_GRID_POINTS = 20_001
_WIDTHS = 10.0


def draw_records(count: int, generator: np.random.Generator) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Draw records, half of each class: x | y ~ N(b_y, I), b_1 = (1.5, 0), b_0 = (0, 1.5).

    Args:
        count: N, even.
        generator: source of the draws.

    Returns:
        Features (N, 2), float32, and classes (N,), int64, in random order.

    Source:
        "A closer look at the calibration of differentially private learners", figure 1 and appendix B.1.
    """
    labels = generator.permutation(np.repeat([0, 1], count // 2))
    return (MEANS[labels] + generator.standard_normal((count, 2))).astype(np.float32), labels


def bayes_probability(features: npt.NDArray) -> Floats:
    """Return P(y = 1 | x) = 1 / (1 + exp(-1.5 (x_1 - x_2))).

    Args:
        features: shape (N, 2).

    Returns:
        Shape (N,).
    """
    return expit(np.asarray(features, np.float64) @ (MEANS[1] - MEANS[0]))


@dataclass(frozen=True)
class LinearTruth:
    """What a linear classifier does on infinitely many records.

    Attributes:
        accuracy: share of right top labels.
        calibration_error: E |conf - P(top label is right | conf)|, the value that an ECE estimates.
        confidence: mean confidence.
        confident_share: share of records with a confidence above .95.
    """

    accuracy: float
    calibration_error: float
    confidence: float
    confident_share: float


CONFIDENT = 0.95


def linear_truth(weight: Floats, bias: float) -> LinearTruth:
    """Compute by quadrature what the classifier p(y = 1 | x) = expit(w . x + c) does on these classes.

    z = w . x + c is N(m_y, |w|^2) in class y, m_y = w . b_y + c, so with f_y its density and t = |z|, conf = expit(t):

        density of t with a right label   r(t) = f_1(t) / 2 + f_0(-t) / 2
        density of t with a wrong label   v(t) = f_0(t) / 2 + f_1(-t) / 2
        calibration error = integral |conf (r + v) - r| dt,  accuracy = integral r dt

    Args:
        weight: w, shape (2,), not zero.
        bias: c.

    Returns:
        The exact values, to about 1e-6.
    """
    scale = float(np.linalg.norm(weight))
    zero, one = (norm(float(mean @ weight) + bias, scale) for mean in MEANS)
    t = np.linspace(0.0, _WIDTHS * scale + abs(bias) + float(np.abs(MEANS @ weight).max()), _GRID_POINTS)
    right, wrong = one.pdf(t) / 2 + zero.pdf(-t) / 2, zero.pdf(t) / 2 + one.pdf(-t) / 2
    confidence, density = expit(t), right + wrong
    threshold = np.log(CONFIDENT / (1 - CONFIDENT))
    share = sum(part.sf(threshold) + part.cdf(-threshold) for part in (zero, one)) / 2
    return LinearTruth(
        accuracy=float((one.sf(0.0) + zero.cdf(0.0)) / 2),
        calibration_error=float(np.trapezoid(np.abs(confidence * density - right), t)),
        confidence=float(np.trapezoid(confidence * density, t)),
        confident_share=float(share),
    )
