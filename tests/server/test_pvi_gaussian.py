"""Partitioned variational inference on linear regression, through the messages of a whole federation.

loss_i = sum_c (x_i w_c + b_c - y_i)^2 / 2 at each site, X = (1, x) with orthogonal columns, X' X = diag(J_k). The ten
outputs are ten repetitions of one problem. A site's chain with step a under the cavity (L, h) has the stationary law
N(m, T / P), P = F (1 - a F / (2 n)), F = L + J_k, m = (h + X' y) / F: at temperature 1 its precision is that of its
posterior but for the step.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import hadamard

from fl_dpbayes.data.site import SiteSplit
from fl_dpbayes.report.warnings import sentence
from fl_dpbayes.samplers.chain import run_chain
from server.federation import STRATEGIES
from server.strategies.pvi import PVIStrategy

PIXELS, ROWS, STEP_SIZE, PRIOR_PRECISION = 64, 128, 0.2, 200.0
SITES = ("north", "south", "east", "west")


def site_data() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(8)
    truth = 0.3 * generator.normal(size=PIXELS + 1)
    data = {}
    for site in SITES:
        columns = hadamard(ROWS)[:, : PIXELS + 1] * np.sqrt(generator.uniform(100, 200, PIXELS + 1) / ROWS)
        columns[:, 0] = 1.0
        own = truth + 0.1 * generator.normal(size=PIXELS + 1)
        data[site] = columns, columns @ own + generator.normal(size=ROWS)
    return data


DATA = site_data()
INFORMATION = {site: np.square(columns).sum(axis=0) for site, (columns, _) in DATA.items()}
EVIDENCE = {site: columns.T @ targets for site, (columns, targets) in DATA.items()}


def part_of(site_file, model, part) -> SiteSplit:
    columns, targets = DATA[site_file.name]
    pixels = columns[:, 1:].reshape(ROWS, *part.features.shape[1:]).astype(np.float32)
    return SiteSplit(features=pixels, labels=targets.astype(np.float32), unit_index=np.arange(ROWS), unit_count=ROWS)


def squared_error(outputs, targets):
    return (outputs - targets[:, None]).square().sum() / 2


def predicted(units: dict[str, int], step_size: float, damping: float, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Precision and mean of q by the recursion of its two natural parameters."""
    precisions = {site: np.zeros(PIXELS + 1) for site in SITES}
    shifts = {site: np.zeros(PIXELS + 1) for site in SITES}
    for _ in range(rounds):
        total, shift = PRIOR_PRECISION + sum(precisions.values()), sum(shifts.values())
        for site in SITES:
            target = total - precisions[site] + INFORMATION[site]
            mean = (shift - shifts[site] + EVIDENCE[site]) / target
            law = target * (1 - step_size * target / (2 * units[site]))
            precisions[site] = precisions[site] + damping * (law - total)
            shifts[site] = shifts[site] + damping * (law * mean - shift)
    precision = PRIOR_PRECISION + sum(precisions.values())
    return precision, sum(shifts.values()) / precision


def assert_centred(values: np.ndarray) -> None:
    assert abs(values.mean()) < 4 * values.std(ddof=1) / np.sqrt(values.size)


def refined(federation, monkeypatch: pytest.MonkeyPatch, settings: str, rounds: int, temperature: float) -> PVIStrategy:
    """Run it; return the strategy, which holds q."""
    strategies = []

    class Watched(PVIStrategy):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            strategies.append(self)

    monkeypatch.setitem(STRATEGIES, "pvi", Watched)
    monkeypatch.setattr("clients.train.model_inputs", part_of)
    monkeypatch.setattr(
        "clients.train.run_chain",
        lambda module, records, **rest: run_chain(module, replace(records, loss=squared_error), **rest),
    )
    run = federation(
        f"aggregation={{rule='pvi', {settings}}}",
        *(f"sites.{name}=" for name in ("held-out", "noisy-scanner", "rotated")),
        f"training={{rounds={rounds}, steps_per_round=640, burn_in=40, thinning=6}}",
        f"sampler={{kind='sgld', step_size={{kind='constant', initial={STEP_SIZE}}}, "
        f"prior={{kind='gaussian', scale={PRIOR_PRECISION**-0.5!r}}}}}",
        f"privacy={{kind='none', sampling_rate=1.0, temperature={temperature}, delta=1e-3}}",
    )
    run.run()
    return strategies[0]


def by_output(vector: np.ndarray) -> np.ndarray:
    """Put the flat vector (weights, biases) into one row (bias, pixels) per output."""
    weights, biases = np.split(vector, [10 * PIXELS])
    return np.concatenate([biases[:, None], weights.reshape(10, PIXELS)], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(("damping", "rounds", "temperature"), [(0.4, 6, 1.0), (0.4, 2, 2.5)])
def test_federation_lands_on_the_predicted_posterior(
    federation, monkeypatch: pytest.MonkeyPatch, damping: float, rounds: int, temperature: float
) -> None:
    strategy = refined(federation, monkeypatch, f"damping={damping}, draws=4000", rounds, temperature)
    assert any(
        "the step size is long for q's largest precision" in text for text in map(sentence, strategy.record.warnings)
    )
    units = {member.card.name: member.card.units for member in strategy.federation.roster.training}
    precision, mean = predicted(units, STEP_SIZE, damping, rounds)
    draws = strategy.posterior()
    q = strategy._refined.posterior
    assert_centred(by_output(q.precision) / precision - 1)
    assert_centred((by_output(q.mean) - mean) * np.sqrt(precision))
    weights = draws.arrays["1.weight"].reshape(4000, -1).astype(np.float64)
    whitened = (weights - q.mean[: 10 * PIXELS]) * np.sqrt(q.precision[: 10 * PIXELS])
    assert abs(whitened.mean()) < 4 / np.sqrt(whitened.size)
    assert abs(whitened.var() - 1) < 4 * np.sqrt(2 / whitened.size)


def test_prediction_without_a_step_is_the_posterior_given_all_records() -> None:
    units = dict.fromkeys(SITES, 200)
    exact = PRIOR_PRECISION + sum(INFORMATION.values())
    for rounds, damping in ((60, 0.4), (1, 1.0)):
        precision, mean = predicted(units, 0.0, damping, rounds)
        np.testing.assert_allclose(precision, exact, rtol=1e-10)
        np.testing.assert_allclose(mean, sum(EVIDENCE.values()) / exact, rtol=1e-10)
    precision, _ = predicted(units, 0.0, 0.4, 2)
    np.testing.assert_allclose(precision, PRIOR_PRECISION + 0.64 * sum(INFORMATION.values()), rtol=1e-10)
