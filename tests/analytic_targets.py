"""Posteriors that are known exactly, and chains on them: one harness for samplers and for rules that join samples.

A target holds a site's records and everything public of its chain: prior to the power `share`,
sampling rate q, clip norm C (which clips nothing here) and n units of one record each.
`independent_chains` runs a sampler many times at once on one, as `run_chain` would. Tolerances are
standard errors of the draws, never a free choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from fl_dpbayes.config.rule import Aggregation
from fl_dpbayes.config.sampler import SGLD, ConstantStepSize, FlatPrior, GaussianPrior, Sampler
from fl_dpbayes.posterior.natural import NaturalGaussian
from fl_dpbayes.posterior.rules.combine import Aggregate, Released, combine_sites
from fl_dpbayes.posterior.samples import PosteriorSamples
from fl_dpbayes.samplers.algorithm import build_algorithm, prior_energy_gradient
from fl_dpbayes.samplers.chain import noisy_gradient
from fl_dpbayes.samplers.state_vectors import ChainState, initial_vectors
from fl_dpbayes.schedules.noise import NoiseScale

SITE_NOISE = 0.5
SITE_SIZES = {"a": 12, "b": 30, "c": 60, "d": 150}
Moments = tuple[np.ndarray, np.ndarray]
CHAINS = 20_000
SIZE = ConstantStepSize(initial=0.1)


def squared_error(outputs, targets):
    """Return the loss of records whose outputs are (n, 1), as their linear regression has it."""
    return (outputs - targets[:, None]).square().sum() / 2


@dataclass(frozen=True)
class Target:
    """Records (n, d) and targets (n,) of a model whose loss depends on x w alone, and the settings of a chain.

    A kind has `errors`, the slope of each record's loss by its output x w, and the `posterior_mean`
    given all records.
    """

    features: np.ndarray
    targets: np.ndarray
    prior: GaussianPrior = field(default_factory=lambda: GaussianPrior(scale=0.8))
    share: float = 0.5
    sampling_rate: float = 1.0
    clip_norm: float = 1.5

    @property
    def units(self) -> int:
        return len(self.targets)

    def scale(self, friction: float = 1.0) -> NoiseScale:
        return NoiseScale(self.clip_norm, self.sampling_rate * self.units, self.units, friction)


class Regression(Target):
    """loss_i = (x_i w - y_i)^2 / 2: the posterior is N(m, (n H)^-1), H the curvature of the mean energy.

    A step is linear in z = (w - m, momentum), z <- A z + g noise, so the stationary covariance
    solves

        Cov z = A Cov z A' + g [q (1 - q) / B^2 sum_i x_i x_i' (x_i' Cov w x_i + r_i^2) + (sigma C / B)^2 I] g'

    exactly, Poisson batches included: r_i is record i's residual at m; A and g are read off the
    sampler's step.
    """

    def errors(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs - torch.from_numpy(self.targets).to(outputs)

    @property
    def curvature(self) -> np.ndarray:
        prior_precision = self.share / self.prior.scale**2
        return (
            self.features.T @ self.features + prior_precision * np.eye(self.features.shape[1])
        ) / self.units

    @property
    def posterior_mean(self) -> np.ndarray:
        return np.linalg.solve(self.units * self.curvature, self.features.T @ self.targets)

    def stationary_covariance(
        self, sampler: Sampler, step_size: float, noise_scale: float
    ) -> np.ndarray:
        """Solve the fixed point above for Cov w, noise_scale = sigma C / B."""
        dimensions, rate = len(self.curvature), self.sampling_rate
        transition, gain = linear_step(sampler, step_size, self.curvature)
        residuals = self.features @ self.posterior_mean - self.targets
        weight = rate * (1 - rate) / (rate * self.units) ** 2

        def new_noise(
            position_covariance: np.ndarray, residual_squares: Any, constant: float
        ) -> np.ndarray:
            spread = (
                np.einsum("ni,ij,nj->n", self.features, position_covariance, self.features)
                + residual_squares
            )
            batch = weight * (self.features.T * spread) @ self.features
            return gain @ (batch + constant * np.eye(dimensions)) @ gain.T

        size, columns = len(transition), []
        for unit in np.eye(size * size):
            covariance = unit.reshape(size, size)
            image = transition @ covariance @ transition.T + new_noise(
                covariance[:dimensions, :dimensions], 0.0, 0.0
            )
            columns.append((covariance - image).ravel())
        constant = new_noise(np.zeros((dimensions, dimensions)), residuals**2, noise_scale**2)
        # A sampler without momentum leaves the second half of z alone, at zero.
        solution = np.linalg.lstsq(np.array(columns).T, constant.ravel(), rcond=None)[0]
        return solution.reshape(size, size)[:dimensions, :dimensions]

    def law(self, sampler: Sampler, step_size: float, temperature: float) -> np.ndarray:
        """T (n H)^-1 with the documented correction for the step size, at full batches."""
        values, vectors = np.linalg.eigh(self.curvature)
        correction = 1 - step_size * values / (2 * (2 - sampler.momentum_lost))
        return vectors * (temperature / (self.units * values) / correction) @ vectors.T


class Logistic(Target):
    """loss_i = log(1 + exp(x_i w)) - y_i x_i w with two weights: the posterior's moments come from a grid."""

    def errors(self, outputs: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(outputs) - torch.from_numpy(self.targets).to(outputs)

    def moments(self) -> Moments:
        """Mean (2,) and covariance (2, 2) of p(w | records), summed over a grid.

        A sum over steps of h is exact up to exp(-2 (pi s / h)^2), s the posterior's deviation.
        """
        axis = np.linspace(-8.0, 8.0, 201)
        grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        outputs = grid @ self.features.T
        energy = (np.logaddexp(0, outputs) - outputs * self.targets).sum(axis=1)
        energy += self.share * (grid**2).sum(axis=1) / (2 * self.prior.scale**2)
        weights = np.exp(energy.min() - energy)
        mean = np.average(grid, axis=0, weights=weights)
        return mean, np.cov(grid.T, aweights=weights, bias=True)

    @property
    def posterior_mean(self) -> np.ndarray:
        return np.asarray(self.moments()[0])


def regression(sampling_rate: float = 1.0) -> Regression:
    """Twelve records of two correlated inputs."""
    generator = np.random.default_rng(5)
    features = generator.standard_normal((12, 2)) @ np.array([[1.0, 0.5], [0.0, 0.7]])
    targets = features @ np.array([0.5, -1.0]) + 0.5 * generator.standard_normal(12)
    return Regression(features, targets, sampling_rate=sampling_rate)


def logistic() -> Logistic:
    """Forty records of two inputs and labels that follow a logistic model."""
    generator = np.random.default_rng(6)
    features = generator.standard_normal((40, 2))
    truth = 1 / (1 + np.exp(-features @ np.array([1.0, -0.6])))
    return Logistic(
        features, (generator.random(40) < truth).astype(float), GaussianPrior(scale=1.5), share=1.0
    )


def linear_step(
    sampler: Sampler, step_size: float, curvature: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A, shape (2 d, 2 d), and g, shape (2 d, d), of z <- A z + g noise on a mean energy of this curvature."""
    eye = torch.eye(2 * len(curvature) + len(curvature), dtype=torch.float64)
    position, momentum, noise = eye.split(len(curvature), dim=1)
    state = ChainState({"parameters": position, "momentum": momentum})
    after = build_algorithm(sampler, torch.nn.Identity()).step(
        state, position @ torch.from_numpy(curvature) + noise, step_size
    )
    moved = after.vectors.get("momentum", torch.zeros_like(momentum))
    columns = torch.cat([after.parameters, moved], dim=1).numpy().T
    return columns[:, : 2 * len(curvature)], columns[:, 2 * len(curvature) :]


def independent_chains(
    target: Target,
    sampler: Sampler,
    step_size: float,
    sigma: float,
    *,
    steps: int = 150,
    seed: int = 0,
) -> np.ndarray:
    """Final positions of many chains that start at the posterior mean, shape (CHAINS, d)."""
    generator = np.random.default_rng(seed)
    step = build_algorithm(sampler, torch.nn.Identity()).step
    features, scale = torch.from_numpy(target.features).float(), target.scale()
    start = torch.from_numpy(target.posterior_mean).float().repeat(CHAINS, 1)
    state = ChainState(initial_vectors(sampler, start))
    for _ in range(steps):
        errors = target.errors(state.parameters @ features.T)
        if target.sampling_rate < 1:
            joins = (
                generator.random((CHAINS, target.units), dtype=np.float32) < target.sampling_rate
            )
            errors = errors * torch.from_numpy(joins)
        gradient = noisy_gradient(
            errors @ features,
            noise=torch.from_numpy(
                generator.standard_normal(tuple(state.parameters.shape), dtype=np.float32)
            ),
            noise_multiplier=float(sigma),
            noise_unit=target.clip_norm,
            expected_batch_size=scale.expected_batch_size,
            data_free_gradient=prior_energy_gradient(target.prior, state.parameters, target.share),
            units=target.units,
        )
        state = step(state, gradient, step_size)
    return state.parameters.double().numpy()


def assert_within_four_standard_errors(
    positions: np.ndarray, mean: np.ndarray, covariance: np.ndarray
) -> None:
    """Means and products of deviations from `mean`, positions (N, d), are the stated ones."""
    error = positions - mean
    assert (np.abs(error.mean(axis=0)) <= 4 * error.std(axis=0) / np.sqrt(len(error))).all()
    products = error[:, :, None] * error[:, None, :]
    assert (
        np.abs(products.mean(axis=0) - covariance) <= 4 * products.std(axis=0) / np.sqrt(len(error))
    ).all()


def check_gaussian_target(sampler: Sampler, *, temperature: float) -> None:
    """Check that a sampler's chains under Langevin noise of that temperature have the exact law of their step.

    And that this law tends to the posterior at the temperature as steps get short.
    """
    target = regression()
    scale = target.scale(sampler.momentum_lost)
    for size in (0.2, 1e-4):
        sigma = scale.langevin_noise(np.array([size]), temperature)[0]
        law = target.stationary_covariance(sampler, size, sigma * target.clip_norm / target.units)
        if size == 0.2:
            positions = independent_chains(target, sampler, size, sigma, seed=1)
            assert_within_four_standard_errors(positions, target.posterior_mean, law)
    np.testing.assert_allclose(
        law, temperature * np.linalg.inv(target.units * target.curvature), rtol=1e-3
    )


@dataclass(frozen=True)
class LinearSites:
    """y = X w + noise at each of several sites, whose posteriors are known exactly.

    Prior N(0, prior_scale^2 I).
    """

    information: dict[str, np.ndarray]  # site -> X^T X / noise^2
    evidence: dict[str, np.ndarray]  # site -> X^T y / noise^2
    prior_scale: float = 1.5

    @property
    def sites(self) -> list[str]:
        return list(self.information)

    def natural(self, site: str, share: float, scale: float = 1.0) -> NaturalGaussian:
        """p(w)^share p(D_k|w)^scale."""
        prior = np.eye(3) / self.prior_scale**2
        return NaturalGaussian(
            share * prior + scale * self.information[site], scale * self.evidence[site]
        )

    def factors(self, share: float) -> list[NaturalGaussian]:
        return [self.natural(site, share) for site in self.sites]

    @property
    def posterior(self) -> Moments:
        """The posterior given all records, by numpy alone."""
        precision = np.eye(3) / self.prior_scale**2 + sum(self.information.values())
        covariance = np.linalg.inv(precision)
        return covariance @ sum(self.evidence.values()), covariance

    def moments(self, site: str, share: float, scale: float = 1.0) -> Moments:
        natural = self.natural(site, share, scale)
        covariance = np.linalg.inv(natural.precision)
        return covariance @ natural.precision_mean, covariance


def linear_sites(*, diagonal: bool) -> LinearSites:
    """Four heterogeneous sites.

    `diagonal`: of orthogonal designs, so diagonal precisions that differ between sites.
    """
    generator = np.random.default_rng(11)
    truth = np.array([1.0, -0.6, 0.3])
    information, evidence = {}, {}
    for index, (site, size) in enumerate(SITE_SIZES.items()):
        mixing = generator.normal(size=(3, 3)) * np.array([1.0, 0.5, 2.0])
        features = generator.normal(size=(size, 3)) @ mixing
        if diagonal:
            lengths = np.array([1.0, 0.5, 2.0][index % 3 :] + [0.7] * 3)[:3]
            features = np.linalg.qr(features)[0] * np.sqrt(size) * lengths
        offset = 0.4 * generator.normal(size=3)
        target = features @ (truth + offset) + SITE_NOISE * generator.normal(size=size)
        information[site] = features.T @ features / SITE_NOISE**2
        evidence[site] = features.T @ target / SITE_NOISE**2
        if diagonal:
            information[site] = np.diag(np.diag(information[site]))
    return LinearSites(information, evidence)


def as_samples(
    draws: np.ndarray, temperature: float = 1.0, weights: np.ndarray | None = None
) -> PosteriorSamples:
    """One array "w" (float64 if the draws are, so that rounding of the message does not hide in tolerances)."""
    weights = np.ones(len(draws)) if weights is None else weights
    return PosteriorSamples({"w": draws}, weights, np.full(len(draws), float(temperature)))


def random_samples(
    moments: Moments, count: int, generator: np.random.Generator
) -> PosteriorSamples:
    """Independent draws."""
    return as_samples(generator.multivariate_normal(*moments, size=count))


def exact_samples(
    moments: Moments, count: int, temperature: float = 1.0, seed: int = 3
) -> PosteriorSamples:
    """Draws whose sample mean and unbiased sample covariance are exactly the moments."""
    mean, covariance = moments
    noise = np.random.default_rng(seed).normal(size=(count, len(mean)))
    noise -= noise.mean(axis=0)
    whitened = np.linalg.solve(np.linalg.cholesky(noise.T @ noise / (count - 1)), noise.T).T
    return as_samples(mean + whitened @ np.linalg.cholesky(temperature * covariance).T, temperature)


def combined(
    name: str,
    samples: Mapping[str, PosteriorSamples],
    *,
    weights: Mapping[str, float] | None = None,
    sites: int | None = None,
    generator: np.random.Generator | None = None,
    scale: float = 1.5,
    **settings: Any,
) -> Aggregate:
    """Combine samples by a rule of this name and settings.

    `draws` may be more than a scenario's.
    """
    draws = {"draws": settings.pop("draws")} if "draws" in settings else {}
    rule = (
        TypeAdapter(Aggregation)
        .validate_python({"rule": name, **settings})
        .model_copy(update=draws)
    )
    sampler = SGLD(
        step_size=SIZE, prior=FlatPrior() if np.isinf(scale) else GaussianPrior(scale=scale)
    )
    shares, source = weights or dict.fromkeys(samples, 1.0), generator or np.random.default_rng(0)
    return combine_sites(rule, Released(samples, shares, sampler, sites or len(samples), source))


def assert_within_standard_errors(replicates: Any, expected: Any) -> None:
    """The mean over replicates (R, ...) is within four of its standard errors from the expected value."""
    replicates = np.asarray(replicates)
    error = replicates.std(axis=0, ddof=1) / np.sqrt(len(replicates))
    distance = np.abs(replicates.mean(axis=0) - expected) / error
    assert distance.max() < 4, f"{distance} standard errors"
