"""beta-PredBayes: one network imitates predictions between the sites' product and mixture.

Each site targets its own posterior p(w|D_k) with the whole prior. The rule works on predictions, so
it needs no alignment of weights between sites. The product of K identical calibrated predictions is
p^K, overconfident; the mixture is calibrated only where the sites agree; beta between 0 (mixture)
and 1 (product) is a setting, or fitted to labelled server data, which need their own governance.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from fl_dpbayes.config import PredBayes, RunWarning, warning
from fl_dpbayes.posterior.rules.combine import Aggregate, Released
from fl_dpbayes.posterior.rules.distillation import imitated, site_predictions, student_of
from fl_dpbayes.posterior.samples import AnySamples

Array = npt.NDArray[np.float64]
# A class that a site rules out altogether would veto it for all: the smallest normal number stands
# for 0.
_TINY = np.finfo(np.float64).tiny
_EQUAL_TEMPERATURES = 1e-6


@dataclass(frozen=True)
class Ends:
    """Logarithms of the product (beta = 1) and of the mixture (beta = 0), not normalised.

    Attributes:
        log_product: sum_k log p_k(y|x), shape (N, classes).
        log_mixture: log sum_k p_k(y|x), shape (N, classes).
    """

    log_product: Array
    log_mixture: Array

    def scores(self, beta: float) -> Array:
        """Return log p_beta(y|x) up to a constant of each record, shape (N, classes)."""
        return beta * self.log_product + (1 - beta) * self.log_mixture


def combine(rule: PredBayes, released: Released) -> Aggregate:
    """Distil the sites' predictions, combined at the rule's beta or at the best one.

    The best one fits the server's labelled records.

    Args:
        rule: The scenario's section.
        released: What the sites released, and the server's network and inputs.

    Returns:
        One sample at temperature 0.
    """
    ends = product_and_mixture(site_predictions(released, site) for site in released.samples)
    labels = student_of(released).labels
    beta = float(rule.beta) if labels is None else best_beta(ends, labels)
    warnings: tuple[RunWarning, ...] = ()
    if released.sampler.has_temperature:
        warnings = temperature_warnings(released.samples)
    return imitated(
        rule=rule,
        released=released,
        teacher=between(ends, beta),
        facts={"beta": beta},
        warnings=warnings,
    )


def product_and_mixture(probabilities: Iterable[Array]) -> Ends:
    """Add up the sites' predictions, of which memory need hold one site's at a time.

        log_product = sum_k log p_k(y|x),    log_mixture = log sum_k p_k(y|x)

    The prior's prediction, of which the product holds K - 1 too many, is uniform and cancels. The
    mixture's 1/K cancels when probabilities are normalised.

    Args:
        probabilities: p_k(y|x) of each site, shape (N, classes).

    Returns:
        Both logarithms.
    """
    log_product = np.zeros(())
    log_mixture = np.full((), -np.inf)
    for site_probabilities in probabilities:
        logarithms = np.log(np.maximum(site_probabilities, _TINY))
        log_product = log_product + logarithms
        log_mixture = np.logaddexp(log_mixture, logarithms)
    return Ends(log_product=log_product, log_mixture=log_mixture)


def between(ends: Ends, beta: float) -> Array:
    """Combine the sites' class probabilities between mixture and product.

        p(y|x) ~ [prod_k p_k(y|x)]^beta [(1/K) sum_k p_k(y|x)]^(1 - beta)

    Args:
        ends: Product and mixture.
        beta: In [0, 1]; 0 is the mixture, 1 the product.

    Returns:
        Probabilities, shape (N, classes).

    Source: Hasan 2024, "Calibrated one round federated learning with Bayesian inference in the
    predictive space".
    """
    return np.exp(log_softmax(ends.scores(beta), axis=1))


def best_beta(ends: Ends, labels: npt.NDArray[np.integer]) -> float:
    """Return the beta in [0, 1] with the least negative log-likelihood on labelled records.

    -sum_i log p_beta(y_i|x_i) is convex in beta, as p_beta is an exponential family in it. Hasan
    takes gradient steps.

    Args:
        ends: Product and mixture on the server's N labelled records.
        labels: Their classes, shape (N,).

    Returns:
        The best beta; an end of the range if it is as good.
    """
    rows = np.arange(len(labels))

    def loss(beta: float) -> float:
        scores = ends.scores(beta)
        return float((logsumexp(scores, axis=1) - scores[rows, labels]).mean())

    inside = minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-6})
    return min((0.0, 1.0, float(inside.x)), key=loss)


def temperature_warnings(site_samples: Mapping[str, AnySamples]) -> tuple[RunWarning, ...]:
    """Warn of sites at different temperatures, which neither product nor mixture corrects."""
    means = [
        float(np.average(samples.temperatures, weights=samples.weights))
        for samples in site_samples.values()
        if len(samples)
    ]
    if not means or max(means) - min(means) <= _EQUAL_TEMPERATURES * max(means):
        return ()
    return (warning("temperatures-differ", least=min(means), most=max(means)),)
