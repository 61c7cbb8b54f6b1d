import numpy as np

from fl_dpbayes.posterior.rules.mixture import joined
from tests.analytic_targets import assert_within_standard_errors, random_samples


def test_width_is_the_law_of_total_variance_and_not_the_posteriors(linear_gaussian):
    generator = np.random.default_rng(0)
    weights = dict(zip(linear_gaussian.sites, (0.1, 0.2, 0.3, 0.4), strict=True))
    moments = {s: linear_gaussian.moments(s, 1.0) for s in linear_gaussian.sites}
    centre = sum(weights[s] * mean for s, (mean, _) in moments.items())
    total = sum(weights[s] * (cov + np.outer(mean - centre, mean - centre)) for s, (mean, cov) in moments.items())
    means, covariances = [], []
    for _ in range(30):
        mixture = joined({s: random_samples(m, 400, generator) for s, m in moments.items()}, weights).in_memory()
        draws, shares = mixture.arrays["w"], mixture.weights
        assert abs(shares.sum() - 1) < 1e-12
        means.append(shares @ draws)
        covariances.append((draws - centre).T * shares @ (draws - centre))
    assert_within_standard_errors(means, centre)
    assert_within_standard_errors(covariances, total)
    assert np.trace(total) > 10 * np.trace(linear_gaussian.posterior[1])
