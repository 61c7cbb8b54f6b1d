"""Sites whose posteriors conflict: the mean of their product hangs on how well their precisions are known."""

import numpy as np
import pytest

from fl_dpbayes.posterior.natural import NaturalGaussian
from fl_dpbayes.posterior.precision import LARGEST_ERROR, mean_error
from fl_dpbayes.posterior.rules import consensus, product
from fl_dpbayes.posterior.samples import PosteriorSamples

RULES = {
    "product-full": lambda samples: product.combine_full(
        samples, prior_scale=np.inf, prior_share=0.0, draws=1, generator=np.random.default_rng(0)
    ),
    "product-diagonal": lambda samples: product.combine_diagonal(
        samples, prior_scale=np.inf, prior_share=0.0, draws=1, generator=np.random.default_rng(0)
    ),
    "consensus-full": lambda samples: consensus.combine_full(
        samples, prior_share=0.5, draws=1, generator=np.random.default_rng(0)
    ),
    "consensus-diagonal": lambda samples: consensus.combine_diagonal(
        samples, prior_share=0.5, draws=1, generator=np.random.default_rng(0)
    ),
}


def site(draws):
    return PosteriorSamples({"w": draws}, np.ones(len(draws)), np.ones(len(draws)))


def two_sites(apart, *, parameters, draws, seed):
    """Standard normal posteriors whose means differ by `apart` standard deviations in every parameter."""
    generator = np.random.default_rng(seed)
    return {
        name: site(sign * apart / 2 + generator.standard_normal((draws, parameters)))
        for name, sign in (("a", -1.0), ("b", 1.0))
    }


def said(rule, samples):
    return [text for text in RULES[rule](samples).warnings if "lie so far apart" in text]


@pytest.mark.parametrize("rule", RULES)
def test_conflicting_sites_are_warned_of_and_agreeing_ones_are_not(rule):
    assert said(rule, two_sites(100.0, parameters=40, draws=4000, seed=1))
    assert not said(rule, two_sites(1.0, parameters=40, draws=4000, seed=1))


@pytest.mark.parametrize("form", ["full", "diagonal"])
def test_error_of_the_mean_is_foretold_over_many_seeds(form):
    parameters, draws, apart, errors, foretold = 6, 60, 12.0, [], []
    for seed in range(400):
        generator = np.random.default_rng(seed)
        factors = []
        for sign in (-1.0, 1.0):
            sample = sign * apart / 2 + generator.standard_normal((draws, parameters))
            covariance = np.cov(sample.T)
            if form == "full":
                precision = (draws - parameters - 2) / (draws - 1) * np.linalg.inv(covariance)
                factors.append(NaturalGaussian(precision, precision @ sample.mean(axis=0)))
            else:
                precision = (draws - 3) / (draws - 1) / np.diag(covariance)
                factors.append(NaturalGaussian(precision, precision * sample.mean(axis=0)))
        combined = factors[0] + factors[1]
        # Of the true product the precision is 2 and the mean 0.
        errors.append(2 * np.square(combined.mean).mean())
        foretold.append(mean_error([(factor, draws) for factor in factors], combined) ** 2)
    standard_error = np.std(errors) / np.sqrt(len(errors))
    # First order in the errors of the precisions, of which each is about sqrt(2 / 53) = 0.2.
    assert np.mean(foretold) == pytest.approx(np.mean(errors), abs=4 * standard_error + 0.1 * np.mean(errors))


def test_forty_dimensions_and_conflict_of_the_known_case_are_foretold():
    samples = two_sites(100.0, parameters=40, draws=4000, seed=2)
    factors = []
    for each in samples.values():
        draws = each.arrays["w"].astype(np.float64)
        precision = (4000 - 42) / 3999 * np.linalg.inv(np.cov(draws.T))
        factors.append(NaturalGaussian(precision, precision @ draws.mean(axis=0)))
    combined = factors[0] + factors[1]
    true = np.sqrt(2 * np.square(combined.mean).mean())
    found = mean_error([(factor, 4000.0) for factor in factors], combined)
    assert true > 4
    assert found == pytest.approx(true, rel=0.4)
    assert found > LARGEST_ERROR


def test_nearly_constant_parameter_is_named():
    generator = np.random.default_rng(3)
    draws = generator.standard_normal((60, 2, 3))
    draws[:, 1, 2] = 1e-9 * draws[:, 1, 2]
    samples = {name: PosteriorSamples({"1.weight": draws}, np.ones(60), np.ones(60)) for name in ("a", "b")}
    with pytest.raises(ValueError, match=r"parameter 1\.weight\[1, 2\] of site 'a' hardly varies"):
        RULES["product-full"](samples)
