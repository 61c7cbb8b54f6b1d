"""Will each site release as many samples as the aggregation rule needs: asked before anything runs."""

import math

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.plural import counted
from fl_dpbayes.config.scenario import Scenario, training_plan
from fl_dpbayes.config.task import Task
from fl_dpbayes.models.build import model_shapes


def check_planned_samples(scenario: Scenario, task: Task) -> None:
    """Check the number of samples that training keeps against the number of the model's parameters.

    Args:
        scenario: the validated scenario.
        task: shape of a record and number of classes.

    Raises:
        UserError: if the rule needs more of each site than its chains keep, or the model does not fit the records.
    """
    rule, shapes = scenario.aggregation, model_shapes(scenario.model, task)
    if rule.own_rounds:
        return
    parameters = sum(math.prod(shape) for shape in shapes.values())
    plan = training_plan(scenario, prior_share=1.0, chain_start="own_last")
    least, planned = rule.least_samples(parameters), plan.kept_before(plan.total_steps)
    if planned < least:
        raise UserError(
            f"aggregation.rule {rule.rule!r} needs {counted(least, 'sample')} of each site for {parameters} "
            f"parameters, training keeps {planned}: lower thinning or burn_in, run more rounds, or choose a rule "
            "without precision matrices"
        )
