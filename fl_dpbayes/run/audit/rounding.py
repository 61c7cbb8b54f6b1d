"""Start states that amplify rounding, tried on the scenario's own model through the sum that sites compute."""

from fl_dpbayes.config.scenario import Scenario
from fl_dpbayes.models.build import build_model, model_input_shape
from fl_dpbayes.privacy.audit_statistics import Check
from fl_dpbayes.run.audit.audited_plan import private_settings
from fl_dpbayes.run.audit.canary_site import canary_task
from fl_dpbayes.samplers.algorithm import build_algorithm
from fl_dpbayes.samplers.amplification import worst_movement
from fl_dpbayes.samplers.gradients.loss import summed_cross_entropy

# Where a pass of 16 rows follows one of 15, other rounding comes into play.
SIZES = (1, 15, 16)
RECORDS_PER_UNIT = (1, 3)
# Of reading a difference of two sums.
TOLERANCE = 1e-5


def audit_rounding(scenario: Scenario) -> list[Check]:
    """Attack by rounding: one more unit must move the clipped sum by at most the clip norm.

    Args:
        scenario: its model, sampler and pre-noise; clipping is flat.

    Returns:
        The check, over units of one record and of several.
    """
    task, moves = canary_task(scenario), {}
    for records in RECORDS_PER_UNIT:
        algorithm = build_algorithm(scenario.sampler, build_model(scenario.model, task, seed=0))
        moves[records] = worst_movement(
            algorithm.module,
            model_input_shape(scenario.model, task),
            task.classes,
            SIZES,
            loss=algorithm.record_loss(summed_cross_entropy),
            records_per_unit=records,
            pre_noise=private_settings(scenario).pre_noise,
        )
    worst = max(moves, key=lambda records: moves[records])
    return [
        Check(
            "rounding",
            "one more unit moves the sum by at most C from start states that amplify rounding",
            moves[worst],
            1 + TOLERANCE,
            "at most",
            f"units of {worst} record{'s'[: worst - 1]}",
            f"more than C at {', '.join(map(str, SIZES))} units",
        )
    ]
