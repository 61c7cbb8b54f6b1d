"""How many samples a stretch keeps, and what a request may ask for."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fl_dpbayes.config.plan import TrainingPlan
from fl_dpbayes.config.task import LogisticModel, Task
from fl_dpbayes.protocol.train import MAX_SAMPLES_PER_REPLY, TrainRequest
from tests.chains import plan_of


def request_of(plan: TrainingPlan, first_step: int, steps: int) -> TrainRequest:
    return TrainRequest(
        run="ab" * 8,
        round=1,
        task=Task(input_shape=(2,), classes=2),
        model=LogisticModel(),
        plan=plan,
        first_step=first_step,
        steps=steps,
        start="0" * 64,
    )


@settings(deadline=None, derandomize=True, max_examples=60)
@given(burn_in=st.integers(0, 20), thinning=st.integers(1, 9), stop=st.integers(0, 40))
def test_kept_before_counts_the_kept_steps_property(burn_in: int, thinning: int, stop: int) -> None:
    plan = plan_of(steps_per_round=40, burn_in=burn_in, thinning=thinning)
    assert plan.kept_before(stop) == sum(plan.is_kept(step) for step in range(stop))


def test_request_keeps_as_many_samples_as_a_reply_holds_and_no_more() -> None:
    plan = plan_of(steps_per_round=3000, burn_in=500)
    request_of(plan, 0, 500 + MAX_SAMPLES_PER_REPLY)
    request_of(plan, 700, MAX_SAMPLES_PER_REPLY)
    for first_step, steps in ((0, 501 + MAX_SAMPLES_PER_REPLY), (700, MAX_SAMPLES_PER_REPLY + 1)):
        with pytest.raises(ValidationError, match="raise thinning"):
            request_of(plan, first_step, steps)


@pytest.mark.parametrize("clip_norm", [0.0, 1e-45, 9e-7])
def test_clip_norm_that_float32_cannot_hold_is_refused(clip_norm: float) -> None:
    plan_of(privacy={"clip_norm": 1e-6})
    with pytest.raises(ValidationError, match="clip_norm"):
        plan_of(privacy={"clip_norm": clip_norm})
