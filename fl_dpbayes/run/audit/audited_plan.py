"""The plans that an audit asks for: the scenario's own, with the changes that let an attacker read what happened."""

from typing import Literal

from fl_dpbayes.config.clipping import GlobalClipping
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import Adam, ConstantStepSize, StepSizeSchedule
from fl_dpbayes.config.scenario import Scenario, training_plan
from fl_dpbayes.run.audit.canary_site import DELTA, UNLIMITED

MOST_CHAINS = 4
ADAM_STEP = 1e-5


def private_settings(scenario: Scenario) -> PrivacyPlan:
    """Return a scenario's privacy settings.

    Raises:
        UserError: if the scenario has none, so that there is nothing to audit.
    """
    if not isinstance(scenario.privacy, PrivacyPlan):
        raise UserError("privacy.kind is 'none': the scenario promises no privacy, so there is nothing to audit")
    return scenario.privacy


def own_plan(scenario: Scenario, *, pre_noise: float | None = None) -> TrainingPlan:
    """Return the scenario's plan, every round from a broadcast state; `pre_noise` replaces the scenario's."""
    plan = training_plan(scenario, prior_share=1.0, chain_start="broadcast")
    private = private_settings(scenario)
    changes = {} if pre_noise is None else {"pre_noise": pre_noise}
    return plan.model_copy(update={"privacy": private.model_copy(update=changes)})


def with_step_size(plan: TrainingPlan, step_size: StepSizeSchedule) -> TrainingPlan:
    """Return the plan with other step sizes."""
    return plan.model_copy(update={"sampler": plan.sampler.model_copy(update={"step_size": step_size})})


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
    """Return a plan of the same sampler, prior, clipping rule and chains with little noise, to read sums by.

    Args:
        plan: the scenario's own.
        clip_norm: C; the bound of global clipping keeps its ratio to it.
        sampling_rate: q.
        noise_multiplier: sigma of every step.
        move: how far a step moves the state, about.
        rounds: of all chains together, at least.
        steps_per_round: of each.

    Returns:
        The plan; its whole cost is admitted.
    """
    privacy = plan.privacy
    assert isinstance(privacy, PrivacyPlan)
    clipping = privacy.clipping
    if isinstance(clipping, GlobalClipping):
        clipping = clipping.model_copy(update={"bound": clipping.bound * clip_norm / privacy.clip_norm})
    step_size = ADAM_STEP if isinstance(plan.sampler, Adam) else move * sampling_rate / clip_norm
    coupling: Literal["constant"] = "constant"
    changes = {
        "epsilon": UNLIMITED, "delta": DELTA, "coupling": coupling, "noise_multiplier": noise_multiplier,
        "temperature": None, "clip_norm": clip_norm, "clipping": clipping, "sampling_rate": sampling_rate,
    }  # fmt: skip
    chains = min(plan.chains, MOST_CHAINS)
    shape = {
        "rounds": -(-rounds // chains), "steps_per_round": steps_per_round, "chains": chains, "burn_in": 0,
        "thinning": 1, "privacy": privacy.model_copy(update=changes),
    }  # fmt: skip
    return with_step_size(plan.model_copy(update=shape), ConstantStepSize(initial=step_size))
