import numpy as np
import pytest

from fl_dpbayes.privacy.audit_check import Check
from fl_dpbayes.privacy.audit_neighbours import gradient_check, norm_check

GRADIENT = np.array([3.0, 4.0])


@pytest.mark.parametrize(("length", "passes"), [(0.5, True), (1.0, True), (1.000009, True), (1.00002, False)])
def test_norm_limit(length: float, passes: bool) -> None:
    assert norm_check(np.array([0.0, 2.0 * length]), clip_norm=2.0).passed is passes


@pytest.mark.parametrize("clip_norm", [2.5, 10.0])
def test_clipped_gradient_passes_and_others_fail(clip_norm: float) -> None:
    clipped = GRADIENT * min(1.0, clip_norm / 5)
    assert gradient_check(clipped, GRADIENT, clip_norm=clip_norm).passed
    for wrong in (clipped * 0.99, clipped * 1.01, -clipped, clipped[::-1], np.zeros(2)):
        assert not gradient_check(wrong, GRADIENT, clip_norm=clip_norm).passed


@pytest.mark.parametrize("relation", ["at most", "at least"])
def test_value_that_is_not_a_number_never_passes(relation) -> None:
    assert not Check("noise", "", float("nan"), 1.0, relation).passed
