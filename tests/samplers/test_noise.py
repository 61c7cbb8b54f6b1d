from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_dpbayes.config.sampler import ConstantStepSize, ExponentialStepSize, PolynomialStepSize
from fl_dpbayes.schedules.noise import NoiseScale, noise_multipliers
from fl_dpbayes.schedules.planned import step_sizes

SIZES = np.array([0.5, 0.125, 0.02])
SCALE = NoiseScale(clip_norm=2.0, expected_batch_size=8.0, units=100)


def multipliers(coupling: str, sigma: float | None, tau: float | None) -> np.ndarray:
    return noise_multipliers(coupling, SIZES, SCALE, sigma, tau)  # type: ignore[arg-type]


def test_couplings_by_hand() -> None:
    assert multipliers("constant", 1.5, None).tolist() == [1.5, 1.5, 1.5]
    assert multipliers("temperature", None, 4.0) == pytest.approx([2.0, 1.0, 0.4], rel=1e-15)
    # (8 / 2) sqrt(2 * 4 / (100 a_t))
    assert multipliers("langevin", None, 4.0) == pytest.approx([1.6, 3.2, 8.0], rel=1e-15)
    assert multipliers("floor", 3.0, 4.0) == pytest.approx([3.0, 3.2, 8.0], rel=1e-15)


@pytest.mark.parametrize("coupling", ["constant", "temperature", "langevin", "floor"])
def test_a_missing_parameter_is_named(coupling: str) -> None:
    for name, those in (("noise_multiplier", (None, 1.0)), ("temperature", (1.0, None))):
        if coupling == "floor" or (coupling == "constant") == (name == "noise_multiplier"):
            with pytest.raises(ValueError, match=f"needs {name}"):
                multipliers(coupling, *those)


@given(
    tau=st.floats(1e-3, 1e3),
    batch=st.floats(0.5, 1e4),
    clip=st.floats(1e-3, 1e3),
    units=st.integers(1, 10**6),
    sizes=st.lists(st.floats(1e-9, 10), min_size=1, max_size=20),
    friction=st.floats(1e-3, 1),
)
def test_langevin_property_has_its_temperature_at_any_friction(
    tau, batch, clip, units, sizes, friction
) -> None:
    scale = NoiseScale(clip, batch, units, friction)
    steps = np.array(sizes)
    plain = noise_multipliers("langevin", steps, NoiseScale(clip, batch, units), temperature=tau)
    for coupling in ("langevin", "floor"):
        noise = noise_multipliers(coupling, steps, scale, 0.0, tau)
        assert scale.temperatures(steps, noise) == pytest.approx(
            np.full(steps.size, tau), rel=1e-12
        )
        # A chain that keeps its momentum heats up, so it needs less noise.
        assert noise == pytest.approx(plain * np.sqrt(friction), rel=1e-12)


def test_temperatures_by_hand_and_where_the_floor_is_hotter_than_tau() -> None:
    # a n sigma^2 C^2 / (2 B^2) = 0.5 * 100 * 4 * 4 / 128
    assert SCALE.temperatures(SIZES, np.full(3, 2.0))[0] == pytest.approx(6.25, rel=1e-15)
    assert replace(SCALE, friction=0.25).temperatures(SIZES, np.full(3, 2.0))[0] == pytest.approx(
        25.0, rel=1e-15
    )
    # Noise that does not know of friction stays as it is, so the chain heats up.
    for coupling in ("constant", "temperature"):
        found = noise_multipliers(coupling, SIZES, replace(SCALE, friction=0.25), 1.5, 4.0)  # type: ignore[arg-type]
        assert np.array_equal(found, multipliers(coupling, 1.5, 4.0))
    # Langevin noise at tau = 4 is 1.6, 3.2, 8.0: below the floor only in the first step.
    hot = SCALE.temperatures(SIZES, multipliers("floor", 2.0, 4.0))
    assert hot[0] == pytest.approx(4.0 * (2.0 / 1.6) ** 2, rel=1e-12)
    assert hot[1:] == pytest.approx([4.0, 4.0], rel=1e-12)


def test_schedules_by_hand() -> None:
    assert step_sizes(ConstantStepSize(initial=0.5), 3).tolist() == [0.5, 0.5, 0.5]
    assert step_sizes(ExponentialStepSize(initial=8.0, decay=0.5), 4).tolist() == [
        8.0,
        4.0,
        2.0,
        1.0,
    ]
    polynomial = step_sizes(PolynomialStepSize(initial=6.0, offset=2.0, power=1.0), 5)
    assert polynomial == pytest.approx([6.0, 4.0, 3.0, 2.4, 2.0], rel=1e-15)
    assert step_sizes(ConstantStepSize(initial=0.5), 0).shape == (0,)
    with pytest.raises(ValueError, match="is zero before step 1000"):
        step_sizes(ExponentialStepSize(initial=1.0, decay=0.1), 1000)
