"""Four heterogeneous linear-Gaussian sites whose posteriors are known exactly, and rules on samples of them."""

from dataclasses import dataclass

import numpy as np
import pytest
from pydantic import TypeAdapter

from fl_dpbayes.config.aggregation import Aggregation
from fl_dpbayes.config.sampler import SGLD, ConstantStepSize, FlatPrior, GaussianPrior
from fl_dpbayes.posterior.natural import NaturalGaussian
from fl_dpbayes.posterior.rules.combine import Released, combine_sites
from fl_dpbayes.posterior.samples import PosteriorSamples

NOISE = 0.5
SIZES = {"a": 12, "b": 30, "c": 60, "d": 150}


@dataclass(frozen=True)
class LinearGaussian:
    """y = X w + noise at each site; prior N(0, prior_scale^2 I)."""

    information: dict  # site -> X^T X / noise^2
    evidence: dict  # site -> X^T y / noise^2
    prior_scale: float
    dimension: int

    @property
    def sites(self):
        return list(self.information)

    def natural(self, site, share, scale=1.0):
        """p(w)^share p(D_k|w)^scale."""
        prior = np.eye(self.dimension) / self.prior_scale**2
        return NaturalGaussian(share * prior + scale * self.information[site], scale * self.evidence[site])

    def factors(self, share):
        return [self.natural(site, share) for site in self.sites]

    @property
    def posterior(self):
        """The posterior given all records, by numpy alone."""
        precision = np.eye(self.dimension) / self.prior_scale**2 + sum(self.information.values())
        covariance = np.linalg.inv(precision)
        return covariance @ sum(self.evidence.values()), covariance

    def moments(self, site, share, scale=1.0):
        natural = self.natural(site, share, scale)
        covariance = np.linalg.inv(natural.precision)
        return covariance @ natural.precision_mean, covariance


def build(diagonal):
    generator = np.random.default_rng(11)
    truth = np.array([1.0, -0.6, 0.3])
    information, evidence = {}, {}
    for index, (site, size) in enumerate(SIZES.items()):
        mixing = generator.normal(size=(3, 3)) * np.array([1.0, 0.5, 2.0])
        features = generator.normal(size=(size, 3)) @ mixing
        if diagonal:
            features = (
                np.linalg.qr(features)[0] * np.sqrt(size) * np.array([1.0, 0.5, 2.0][index % 3 :] + [0.7] * 3)[:3]
            )
        offset = 0.4 * generator.normal(size=3)
        target = features @ (truth + offset) + NOISE * generator.normal(size=size)
        information[site] = features.T @ features / NOISE**2
        evidence[site] = features.T @ target / NOISE**2
        if diagonal:
            information[site] = np.diag(np.diag(information[site]))
    return LinearGaussian(information, evidence, prior_scale=1.5, dimension=3)


@pytest.fixture(scope="session")
def linear_gaussian():
    return build(diagonal=False)


@pytest.fixture(scope="session")
def orthogonal():
    """The same with orthogonal designs: diagonal precisions, differing between sites."""
    return build(diagonal=True)


def samples_of(draws, temperature=1.0, weights=None):
    """One array "w" (float64 if the draws are, so that rounding of the message does not hide in tolerances)."""
    count = len(draws)
    return PosteriorSamples(
        {"w": draws}, np.ones(count) if weights is None else weights, np.full(count, float(temperature))
    )


@pytest.fixture(scope="session")
def as_samples():
    return samples_of


@pytest.fixture(scope="session")
def random_samples():
    """moments, count, generator -> independent draws."""

    def draw(moments, count, generator, temperature=1.0):
        mean, covariance = moments
        return samples_of(generator.multivariate_normal(mean, temperature * covariance, size=count), temperature)

    return draw


@pytest.fixture(scope="session")
def exact_samples():
    """moments, count -> draws whose sample mean and unbiased sample covariance are exactly the moments."""

    def draw(moments, count, temperature=1.0, seed=3):
        mean, covariance = moments
        noise = np.random.default_rng(seed).normal(size=(count, len(mean)))
        noise -= noise.mean(axis=0)
        whitened = np.linalg.solve(np.linalg.cholesky(noise.T @ noise / (count - 1)), noise.T).T
        return samples_of(mean + whitened @ np.linalg.cholesky(temperature * covariance).T, temperature)

    return draw


def combine_by(name, samples, *, weights=None, sites=None, generator=None, scale=1.5, starts=(), **settings):
    """Combine samples by a rule of this name and settings; `draws` may be more than a scenario's."""
    draws = {"draws": settings.pop("draws")} if "draws" in settings else {}
    rule = TypeAdapter(Aggregation).validate_python({"rule": name, **settings}).model_copy(update=draws)
    prior = FlatPrior() if np.isinf(scale) else GaussianPrior(scale=scale)
    released = Released(
        samples,
        weights or dict.fromkeys(samples, 1.0),
        SGLD(step_size=ConstantStepSize(initial=0.1), prior=prior),
        sites or len(samples),
        generator or np.random.default_rng(0),
        starts,
    )
    return combine_sites(rule, released)


@pytest.fixture(scope="session")
def combined():
    return combine_by


def within_standard_errors(replicates, expected, limit=4.0):
    """Is the mean over replicates (R, ...) within `limit` of its standard errors from the expected value?"""
    replicates = np.asarray(replicates)
    error = replicates.std(axis=0, ddof=1) / np.sqrt(len(replicates))
    distance = np.abs(replicates.mean(axis=0) - expected) / error
    assert distance.max() < limit, f"{distance} standard errors"


@pytest.fixture(scope="session")
def assert_within_standard_errors():
    return within_standard_errors
