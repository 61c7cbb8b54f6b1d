"""Server distillation: one network that predicts like the whole posterior.

No convention: the teacher is any rule's averaged prediction. It consumes inputs that are public or synthetic, without
labels, and no site's records, so it costs no privacy. The student answers like the posterior where it was distilled;
off those inputs (shifted sites) its uncertainty is not that of the posterior.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from scipy.special import log_softmax, xlogy

from fl_dpbayes.posterior.rules.aggregate import Aggregate, point_aggregate
from fl_dpbayes.posterior.rules.chains import flatten_state, unflatten

Arrays = Mapping[str, npt.NDArray]
Pullback = Callable[[npt.NDArray[np.float64]], Arrays]
Student = Callable[[Arrays], tuple[npt.NDArray, Pullback]]


@dataclass(frozen=True)
class Distilled:
    """A distilled network.

    Attributes:
        aggregate: its parameters as one sample at temperature 0.
        divergence: mean KL(teacher || student) over the inputs, nats.
        converged: whether the fit came to an end of its own, before the bound on its iterations.
    """

    aggregate: Aggregate
    divergence: float
    converged: bool


def distil(
    student: Student, start: Arrays, teacher_probabilities: npt.NDArray[np.float64], *, max_iterations: int
) -> Distilled:
    """Fit a student to a teacher's probabilities by L-BFGS.

    min_w (1/N) sum_i sum_y p(y|x_i) log(p(y|x_i) / softmax(f(x_i; w))_y), whose gradient with respect to the logits is
    (softmax(f) - p) / N.

    Args:
        student: parameters -> logits (N, classes) at the public or synthetic inputs, and the map of a cotangent
            (N, classes) to gradients by parameter name (their vector-Jacobian product). Parameters come as float32.
        start: parameter name -> initial value, in the order of the model.
        teacher_probabilities: p(y|x_i), shape (N, classes), N >= 1, rows summing to 1.
        max_iterations: bound on L-BFGS iterations, >= 1.

    Returns:
        The student's parameters and its divergence from the teacher.

    Raises:
        ValueError: if there is no input.

    References:
        Hinton et al. 2015, "Distilling the knowledge in a neural network"; Bhatt et al. 2024, "Federated learning with
        uncertainty via distilled predictive distributions".
    """
    if not len(teacher_probabilities):
        raise ValueError("there is no input to distil on: give public records or synthetic inputs")
    shapes = {name: tuple(array.shape) for name, array in start.items()}
    entropy = -xlogy(teacher_probabilities, teacher_probabilities).sum(axis=1).mean()

    def loss(vector: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        parameters = {name: array[0] for name, array in unflatten(vector[np.newaxis], shapes).items()}
        logits, pullback = student(parameters)
        log_probabilities = log_softmax(np.asarray(logits, np.float64), axis=1)
        cross_entropy = -(teacher_probabilities * log_probabilities).sum(axis=1).mean()
        cotangent = (np.exp(log_probabilities) - teacher_probabilities) / len(teacher_probabilities)
        return float(cross_entropy - entropy), flatten_state(pullback(cotangent), shapes)

    initial = flatten_state(start, shapes)
    result = minimize(loss, initial, jac=True, method="L-BFGS-B", options={"maxiter": max_iterations})
    aggregate = point_aggregate(result.x[np.newaxis], shapes, ())
    # Status 1 is the bound; elsewhere the line search ends where float32 shows no descent any more.
    return Distilled(aggregate, max(0.0, float(result.fun)), converged=result.status != 1)
