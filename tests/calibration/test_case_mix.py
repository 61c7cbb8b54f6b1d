import numpy as np
import pytest

from fl_dpbayes.calibration.case_mix import case_mix, clipped_inputs


def patients(count: int, generator: np.random.Generator) -> np.ndarray:
    first = generator.normal(size=count)
    skewed = generator.exponential(size=count)
    rare = generator.random(count) < 0.2
    return np.column_stack([first, skewed + first / 2, rare])


def test_a_unit_moves_the_sum_by_its_own_clipped_mean_alone():
    generator = np.random.default_rng(3)
    public = patients(500, generator)
    inputs = 5 * patients(40, generator)
    units = np.arange(40) // 2
    shares, norm = clipped_inputs(inputs, units, public)
    without, _ = clipped_inputs(inputs[:38], units[:38], public)
    assert (shares[:19] == without).all()
    far, _ = clipped_inputs(np.full((1, 3), 1e9), np.zeros(1, int), public)
    assert np.linalg.norm(shares, axis=1).max() <= norm * (1 + 1e-12)
    assert norm * (1 - 1e-6) <= np.linalg.norm(far) <= norm
    assert shares == pytest.approx(
        clipped_inputs((inputs[::2] + inputs[1::2]) / 2, np.arange(20), public)[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "noise", "public"), [(60, 0.0, 2_000), (60, 5.0, 2_000), (300, 2.0, 600)]
)
def test_statistic_has_its_distribution_where_nothing_differs_and_rings_where_it_does(
    count, noise, public
):
    generator = np.random.default_rng(17)
    repeats = 500
    found = []
    other = []
    for _ in range(repeats):
        declared = patients(public, generator)
        own = patients(count, generator)
        for inputs, kept in ((own, found), (own + np.eye(3)[0] * 0.6, other)):
            total = clipped_inputs(inputs, np.arange(count), declared)[0].sum(axis=0)
            kept.append(
                case_mix(total + noise * generator.normal(size=3), noise, count, declared).p_value
            )
    for level in (0.1, 0.5):
        assert (
            abs(np.mean(np.array(found) < level) - level)
            < 4 * (level * (1 - level) / repeats) ** 0.5
        )
    assert np.mean(np.array(other) < 0.1) > 0.5


@pytest.mark.parametrize("value", [np.nan, np.inf, 3.4e38, -3.4e38, 5e-324])
def test_a_unit_with_extreme_inputs_stays_within_the_bound_and_leaves_others_alone(
    value: float,
) -> None:
    generator = np.random.default_rng(4)
    public = patients(500, generator)
    inputs = patients(6, generator)
    units = np.arange(6) // 2
    inputs[0, 1] = value
    shares, norm = clipped_inputs(inputs, units, public)
    assert np.isfinite(shares).all()
    assert np.linalg.norm(shares, axis=1).max() <= norm * (1 + 1e-12)
    assert (shares[1:] == clipped_inputs(inputs[2:], units[:4], public)[0]).all()


@pytest.mark.parametrize("size", [0.0, 1e-120])
def test_declared_inputs_without_a_spread_are_refused(size: float) -> None:
    public = size * patients(500, np.random.default_rng(4))
    with pytest.raises(ValueError, match="bound of a unit's share"):
        clipped_inputs(np.ones((2, 3)), np.arange(2), public)
