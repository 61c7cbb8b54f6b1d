"""Regression data whose function and whose noise are known: a Gaussian process with noise that grows with x."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
POINTS, TRAINED, TESTED = 400, 250, 250
_JITTER = 1e-9


@dataclass(frozen=True)
class Heteroscedastic:
    """One simulation.

    Attributes:
        features: the training inputs, shape (250, 1), float32, ascending.
        targets: shape (250,), float32.
        function: the noise-free targets there, shape (250,).
        test_features: fresh inputs over the same range, shape (250, 1), float32.
        test_targets: shape (250,).
        test_function: the noise-free targets there, shape (250,).
    """

    features: npt.NDArray[np.float32]
    targets: npt.NDArray[np.float32]
    function: Floats
    test_features: npt.NDArray[np.float32]
    test_targets: Floats
    test_function: Floats


def draw_simulation(generator: np.random.Generator) -> Heteroscedastic:
    """Draw a function and noisy observations of it.

    400 x ~ U(-3, 3), f ~ GP(0, exp(-(x - x')^2 / 2)), y = f(x) + .3 |x + 2| xi, xi ~ N(0, 1), minus the mean of the 400
    targets; the 250 in the middle by x are for training. The test records are fresh inputs between the outermost
    training inputs, on the same function, with fresh noise.

    Args:
        generator: source of the draws.

    Returns:
        The simulation.

    Source:
        Zhang et al., section 5.2, and the authors' public notebooks for the 250 in the middle.
    """
    x = np.sort(generator.uniform(-3.0, 3.0, POINTS))
    first = (POINTS - TRAINED) // 2
    middle = slice(first, first + TRAINED)
    test = generator.uniform(x[middle][0], x[middle][-1], TESTED)
    inputs = np.concatenate([x, test])
    covariance = np.exp(-0.5 * np.subtract.outer(inputs, inputs) ** 2)
    root = np.linalg.cholesky(covariance + _JITTER * np.eye(len(inputs)))
    function = root @ generator.standard_normal(len(inputs))
    targets = function + 0.3 * np.abs(inputs + 2.0) * generator.standard_normal(len(inputs))
    centre = targets[:POINTS].mean()
    function, targets = function - centre, targets - centre
    return Heteroscedastic(
        features=x[middle, None].astype(np.float32),
        targets=targets[:POINTS][middle].astype(np.float32),
        function=function[:POINTS][middle],
        test_features=test[:, None].astype(np.float32),
        test_targets=targets[POINTS:],
        test_function=function[POINTS:],
    )
