import numpy as np
import pytest

from fl_dpbayes.calibration.metrics.two_classes import THRESHOLDS, decision_curve, net_benefit
from fl_dpbayes.calibration.statistics import empty, from_batch


def binary(p, y):
    p = np.asarray(p, np.float64)
    return from_batch(np.stack([1 - p, p], axis=1), y)


def test_agrees_with_its_definition_at_every_threshold():
    generator = np.random.default_rng(1)
    p = np.concatenate([generator.beta(0.6, 0.6, 500), np.arange(21) / 20])
    y = (generator.random(p.size) < p).astype(np.int64)
    curve = decision_curve(binary(p, y))
    assert [point.threshold for point in curve] == [step / 20 for step in range(1, 20)]
    for point in curve:
        t, treated = point.threshold, p >= point.threshold
        true, false = (treated & (y == 1)).mean(), (treated & (y == 0)).mean()
        assert point.model == pytest.approx(true - false * t / (1 - t), abs=1e-12)
        assert point.all == pytest.approx(y.mean() - (1 - y.mean()) * t / (1 - t), abs=1e-12)
        assert point.none == 0
        assert point.interval.low <= point.model <= point.interval.high


@pytest.mark.parametrize("count", [50, 200, 624])
@pytest.mark.parametrize("mean", [-0.5, -2.5])
def test_interval_covers(count, mean):
    generator, replicates = np.random.default_rng(2), 300
    score = generator.normal(mean, 1.5, 400_000)
    p, law = 1 / (1 + np.exp(-score)), 1 / (1 + np.exp(-0.3 - 0.7 * score))
    thresholds = (0.05, 0.2, 0.5, 0.8, 0.95)
    truth = [np.mean((p >= t) * (law - (1 - law) * t / (1 - t))) for t in thresholds]
    covered = np.zeros(len(thresholds))
    for _ in range(replicates):
        rows = generator.integers(0, p.size, count)
        statistics = binary(p[rows], (generator.random(count) < law[rows]).astype(np.int64))
        for place, (t, true) in enumerate(zip(thresholds, truth, strict=True)):
            interval = net_benefit(statistics, t).interval
            covered[place] += interval.low <= true <= interval.high
    assert (covered / replicates >= 0.93 - 3 * (0.93 * 0.07 / replicates) ** 0.5).all(), covered / replicates


def test_interval_has_a_width_where_none_is_treated_limit():
    point = net_benefit(binary([0.1] * 100, [0] * 100), 0.5)
    assert point.model == 0
    assert point.interval.low < -0.01
    assert point.interval.high > 0.01


def test_undefined_and_refused_limit():
    assert decision_curve(empty(2)) is None
    assert decision_curve(from_batch([[0.2, 0.7, 0.1]], [0])) is None
    assert len(THRESHOLDS) == 19
    for wrong in (0.0, 1.0, 1 / 7):
        with pytest.raises(ValueError, match="threshold is"):
            net_benefit(binary([0.2], [0]), wrong)
