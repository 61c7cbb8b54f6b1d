import numpy as np
import pytest

from fl_dpbayes.config.sampler import ConstantStepSize, ExponentialStepSize, PolynomialStepSize
from fl_dpbayes.samplers.step_size import step_sizes


def test_schedules_by_hand() -> None:
    assert step_sizes(ConstantStepSize(initial=0.5), 3).tolist() == [0.5, 0.5, 0.5]
    assert step_sizes(ExponentialStepSize(initial=8.0, decay=0.5), 4).tolist() == [8.0, 4.0, 2.0, 1.0]
    polynomial = step_sizes(PolynomialStepSize(initial=6.0, offset=2.0, power=1.0), 5)
    assert polynomial == pytest.approx([6.0, 4.0, 3.0, 2.4, 2.0], rel=1e-15)


def test_no_step_has_no_size() -> None:
    sizes = step_sizes(ConstantStepSize(initial=0.5), 0)
    assert sizes.shape == (0,)
    assert sizes.dtype == np.float64


def test_a_schedule_that_falls_to_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="falls to zero"):
        step_sizes(ExponentialStepSize(initial=1.0, decay=0.1), 1000)
