"""The plan that the detectors of an audit run: the scenario's mechanism under an update that can be read backwards."""

from fl_dpbayes.errors import UserError
from fl_dpbayes.protocol.clipping import FlatClipping
from fl_dpbayes.protocol.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.protocol.sampler import SGLD
from fl_dpbayes.protocol.task import Model
from fl_dpbayes.scenario import Scenario, training_plan


def private_settings(scenario: Scenario) -> PrivacyPlan:
    """Return a scenario's privacy settings.

    Raises:
        UserError: if the scenario has none, so that there is nothing to audit.
    """
    if not isinstance(scenario.privacy, PrivacyPlan):
        raise UserError("privacy.kind is 'none': the scenario promises no privacy, so there is nothing to audit")
    return scenario.privacy


def audited_plan(scenario: Scenario) -> TrainingPlan:
    """Return the scenario's plan with every state kept, Langevin updates, flat clipping and no pre-noise.

    All samplers share the path from records to noisy sums, and only the plain Langevin update gives those sums back
    from the states. Pre-noise goes through the clip and is not accounted.

    Args:
        scenario: the audited scenario.

    Returns:
        The plan, with the scenario's noise, sampling rate, clip norm and budget.
    """
    plan = training_plan(scenario, prior_share=1.0, chain_start="broadcast")
    private = private_settings(scenario).model_copy(update={"pre_noise": 0.0, "clipping": FlatClipping()})
    sampler = SGLD(step_size=plan.step_size, prior=plan.prior)
    return plan.model_copy(update={"burn_in": 0, "thinning": 1, "privacy": private, "sampler": sampler})


def audited_model(scenario: Scenario) -> Model:
    """Return the scenario's model on raw records, all of it trained: what is fixed is no part of the mechanism."""
    return scenario.model.model_copy(update={"features": None, "frozen_body": None})


def substitutions(scenario: Scenario) -> str:
    """Say what of the scenario the detectors replace; empty if nothing."""
    replaced = []
    if not isinstance(scenario.sampler, SGLD):
        replaced.append(f"the update of {scenario.sampler.kind} by that of dp-sgld")
    if not isinstance(private_settings(scenario).clipping, FlatClipping):
        replaced.append(f"{private_settings(scenario).clipping.kind} clipping by flat clipping")
    if scenario.model.features is not None:
        replaced.append(f"{scenario.model.features.kind} features by raw records")
    if scenario.model.frozen_body is not None:
        replaced.append("the frozen body by one that is trained")
    return " and ".join(replaced)
