import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_dpbayes.schedules.noise import noise_multipliers, temperatures

SIZES = np.array([0.5, 0.125, 0.02])
PLACE = {"clip_norm": 2.0, "expected_batch_size": 8.0, "units": 100}


def multipliers(coupling: str, sigma: float | None, tau: float | None) -> np.ndarray:
    return noise_multipliers(coupling, step_sizes=SIZES, noise_multiplier=sigma, temperature=tau, **PLACE)  # type: ignore[arg-type]


def test_couplings_by_hand() -> None:
    assert multipliers("constant", 1.5, None).tolist() == [1.5, 1.5, 1.5]
    assert multipliers("temperature", None, 4.0) == pytest.approx([2.0, 1.0, 0.4], rel=1e-15)
    # (8 / 2) sqrt(2 * 4 / (100 a_t))
    assert multipliers("langevin", None, 4.0) == pytest.approx([1.6, 3.2, 8.0], rel=1e-15)
    assert multipliers("floor", 3.0, 4.0) == pytest.approx([3.0, 3.2, 8.0], rel=1e-15)


@pytest.mark.parametrize(
    ("coupling", "sigma", "tau", "missing"),
    [
        ("constant", None, None, "noise_multiplier"),
        ("temperature", None, None, "temperature"),
        ("langevin", 1.0, None, "temperature"),
        ("floor", None, 1.0, "noise_multiplier"),
        ("floor", 1.0, None, "temperature"),
    ],
)
def test_a_missing_parameter_is_named(coupling: str, sigma: float | None, tau: float | None, missing: str) -> None:
    with pytest.raises(ValueError, match=f"needs {missing}"):
        multipliers(coupling, sigma, tau)


@given(
    tau=st.floats(1e-3, 1e3),
    batch=st.floats(0.5, 1e4),
    clip=st.floats(1e-3, 1e3),
    units=st.integers(1, 10**6),
    sizes=st.lists(st.floats(1e-9, 10), min_size=1, max_size=20),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_langevin_property_has_its_temperature(
    tau: float, batch: float, clip: float, units: int, sizes: list[float]
) -> None:
    place = {"clip_norm": clip, "expected_batch_size": batch, "units": units}
    steps = np.array(sizes)
    noise = noise_multipliers("langevin", step_sizes=steps, noise_multiplier=None, temperature=tau, **place)  # type: ignore[arg-type]
    assert temperatures(steps, noise, **place) == pytest.approx(np.full(steps.size, tau), rel=1e-12)  # type: ignore[arg-type]


def test_temperature_of_constant_noise_by_hand() -> None:
    # a n sigma^2 C^2 / (2 B^2) = 0.5 * 100 * 4 * 4 / 128
    assert temperatures(SIZES, np.full(3, 2.0), **PLACE)[0] == pytest.approx(6.25, rel=1e-15)
