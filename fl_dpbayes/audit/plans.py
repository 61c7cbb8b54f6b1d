"""The plans that an audit asks for: the scenario's own, changed so that they can be read by."""

import math

from fl_dpbayes.audit.canary_site import DELTA, UNLIMITED
from fl_dpbayes.config import (
    ConstantStepSize,
    GlobalClipping,
    PrivacyPlan,
    Scenario,
    StepSizeSchedule,
    TrainingPlan,
    training_plan,
)
from fl_dpbayes.errors import UserError

MOST_CHAINS = 4
ADAM_STEP = 1e-5


def private_settings(scenario: Scenario) -> PrivacyPlan:
    """Return a scenario's privacy settings.

    Args:
        scenario: To be audited.

    Returns:
        The settings of its private training.

    Raises:
        UserError: If it has none, so that there is nothing to audit.
    """
    if not isinstance(scenario.privacy, PrivacyPlan):
        raise UserError(
            f"sampler.kind is {scenario.sampler.kind!r}: the scenario promises no privacy, so "
            "there is nothing to audit"
        )
    return scenario.privacy


def own_plan(scenario: Scenario, *, pre_noise: float | None = None) -> TrainingPlan:
    """Return the scenario's plan, every round from a broadcast state.

    Args:
        scenario: To be audited.
        pre_noise: Replaces the scenario's; None leaves it.

    Returns:
        The plan of a single site.
    """
    plan = training_plan(scenario, prior_share=1.0, chain_start="broadcast")
    privacy = private_settings(scenario)
    if pre_noise is not None:
        privacy = privacy.model_copy(update={"pre_noise": pre_noise})
    return plan.model_copy(update={"privacy": privacy})


def with_step_size(plan: TrainingPlan, step_size: StepSizeSchedule) -> TrainingPlan:
    """Return the plan with other step sizes.

    Args:
        plan: Of any sampler.
        step_size: Its new schedule.

    Returns:
        A copy.
    """
    sampler = plan.sampler.model_copy(update={"step_size": step_size})
    return plan.model_copy(update={"sampler": sampler})


def loud_plan(
    plan: TrainingPlan,
    *,
    clip_norm: float,
    sampling_rate: float,
    noise_multiplier: float,
    move: float,
    rounds: int,
    steps_per_round: int,
) -> TrainingPlan:
    """Return a plan of the same sampler, prior, clipping rule and chains, to read sums by.

    Its whole cost is admitted. The bound of global clipping keeps its ratio to C.

    Args:
        plan: The scenario's.
        clip_norm: C > 0.
        sampling_rate: q, in (0, 1].
        noise_multiplier: sigma > 0 of every step.
        move: By which a step moves the state, about; without effect on samplers that rescale.
        rounds: Of all chains together, at least.
        steps_per_round: One or more.

    Returns:
        A plan that keeps every step.
    """
    privacy = plan.privacy
    assert isinstance(privacy, PrivacyPlan)
    clipping = privacy.clipping
    if isinstance(clipping, GlobalClipping):
        bound = clipping.bound * clip_norm / privacy.clip_norm
        clipping = clipping.model_copy(update={"bound": bound})
    loud_privacy = privacy.model_copy(
        update={
            "epsilon": UNLIMITED,
            "delta": DELTA,
            "coupling": "constant",
            "noise_multiplier": noise_multiplier,
            "temperature": None,
            "clip_norm": clip_norm,
            "clipping": clipping,
            "sampling_rate": sampling_rate,
        }
    )
    chains = min(plan.chains, MOST_CHAINS)
    loud = plan.model_copy(
        update={
            "rounds": math.ceil(rounds / chains),
            "steps_per_round": steps_per_round,
            "chains": chains,
            "burn_in": 0,
            "thinning": 1,
            "privacy": loud_privacy,
        }
    )
    step_size = ADAM_STEP if plan.sampler.rescales else move * sampling_rate / clip_norm
    return with_step_size(loud, ConstantStepSize(initial=step_size))
