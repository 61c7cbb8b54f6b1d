import numpy as np
import pytest

from fl_dpbayes.calibration.case_mix import CaseMix, DeclaredInputs

GENERATOR = np.random.default_rng(3)
# Correlated, skewed and of two values: what tables hold.
MIXED = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def patients(count: int, generator: np.random.Generator) -> np.ndarray:
    rows = np.column_stack(
        [generator.normal(size=count), generator.exponential(size=count), generator.random(count) < 0.2]
    )
    return rows @ MIXED


def test_a_unit_moves_the_sum_by_its_own_clipped_mean_alone():
    declared = DeclaredInputs.of(patients(500, GENERATOR))
    inputs, units = 5 * patients(40, GENERATOR), np.arange(40) // 2
    whole = declared.clipped_sum(inputs, units)
    without = declared.clipped_sum(inputs[:38], units[:38])
    assert np.linalg.norm(whole - without) <= declared.clip_norm * (1 + 1e-12)
    # Several records of a unit count as their mean.
    means = np.stack([inputs[0::2], inputs[1::2]]).mean(axis=0)
    assert whole == pytest.approx(declared.clipped_sum(means, np.arange(20)))
    far = declared.clipped_sum(np.full((1, 3), 1e9), np.zeros(1, int))
    assert np.linalg.norm(far) == pytest.approx(declared.clip_norm)


@pytest.mark.parametrize(("units", "noise", "public"), [(60, 0.0, 10_000), (60, 5.0, 10_000), (300, 2.0, 600)])
def test_statistic_has_its_distribution_where_nothing_differs(units, noise, public):
    generator, found = np.random.default_rng(17), []
    for _ in range(800):
        declared = DeclaredInputs.of(patients(public, generator))
        sent = declared.clipped_sum(patients(units, generator), np.arange(units)) + noise * generator.normal(size=3)
        found.append(CaseMix.of_sum(sent, noise, units, declared))
    assert {one.degrees for one in found} == {3}
    values = [one.p_value for one in found]
    for level in (0.1, 0.5):
        assert abs(np.mean(np.array(values) < level) - level) < 4 * (level * (1 - level) / 800) ** 0.5
    slopes = np.array([1.0, -2.0, 0.5])
    standard = [shift / sd for shift, sd in (one.along(slopes) for one in found)]
    assert abs(np.std(standard) - 1) < 0.1


def test_other_patients_are_seen_through_the_noise():
    generator = np.random.default_rng(8)
    declared, moved = DeclaredInputs.of(patients(5_000, generator)), np.array([0.5, 0.0, 0.0])
    sent = declared.clipped_sum(patients(300, generator) + moved, np.arange(300)) + 5 * generator.normal(size=3)
    found = CaseMix.of_sum(sent, 5.0, 300, declared)
    assert found.p_value < 1e-4
    assert found.along(moved)[0] == pytest.approx(0.17, abs=0.08)  # .25, and clipping shortens it
