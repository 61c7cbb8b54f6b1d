"""The bound on how far a chain gets must not reject an honest site for the rounding of float32."""

from types import SimpleNamespace

import numpy as np
import pytest

from fl_dpbayes.config.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import SGLD, ConstantStepSize
from server.check_reply import check_reachable

PLAN = TrainingPlan(
    rounds=1,
    steps_per_round=5,
    burn_in=0,
    thinning=5,
    sampler=SGLD(step_size=ConstantStepSize(initial=1e-12)),
    privacy=PrivacyPlan(epsilon=8, delta=1e-5, noise_multiplier=2.0, sampling_rate=1.0),
    chain_start="broadcast",
)


def check(moved: np.ndarray, start: np.ndarray) -> None:
    reply = SimpleNamespace(
        last_step=4, last={"parameters/w": moved}, samples=SimpleNamespace(arrays={"w": moved[np.newaxis]})
    )
    request = SimpleNamespace(plan=PLAN, first_step=0, steps=5, precision="float32")
    check_reachable(reply, request, 1000, {"parameters/w": start})  # type: ignore[arg-type]


def test_last_digits_may_move_however_short_the_steps_are() -> None:
    start = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    check(np.nextafter(start, np.float32(np.inf)), start)
    with pytest.raises(ValueError, match=r"lies .* from the start"):
        check(start + np.float32(1e-3), start)
