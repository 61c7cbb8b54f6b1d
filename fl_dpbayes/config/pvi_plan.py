"""What partitioned variational inference makes of a scenario's plan: every round is a chain of its own."""

from fl_dpbayes.config.plan import TrainingPlan

LEAST_SAMPLES = 5
_MOST_ROUNDS = 1000


def pvi_plan(plan: TrainingPlan) -> TrainingPlan:
    """Turn a plan of one chain over R rounds into R chains of one round, whose prior is the cavity of their request.

    Each round has another target, so it starts anew from q's mean: the step-size schedule starts over, and `burn_in`
    and `thinning` count its own steps. The account is that of all steps together, as before.

    Args:
        plan: of the scenario, with the whole prior.

    Returns:
        The plan that the sites get.

    Raises:
        ValueError: if the scenario asks for several chains or more rounds than a plan has chains, or a round keeps
            fewer samples than the precision of a single parameter needs.
    """
    if plan.chains != 1:
        raise ValueError(
            f"chains is {plan.chains}: aggregation.rule 'pvi' starts a chain in every round, set chains = 1 and choose "
            "rounds"
        )
    if plan.rounds > _MOST_ROUNDS:
        raise ValueError(f"rounds is {plan.rounds}: aggregation.rule 'pvi' allows at most {_MOST_ROUNDS}")
    kept = max(0, plan.steps_per_round - plan.burn_in) // plan.thinning
    if kept < LEAST_SAMPLES:
        raise ValueError(
            f"aggregation.rule 'pvi' counts burn_in and thinning within each round, and {plan.steps_per_round} "
            f"steps_per_round after a burn_in of {plan.burn_in} with thinning {plan.thinning} keep {kept} samples: it "
            f"needs at least {LEAST_SAMPLES}, so raise steps_per_round or lower burn_in or thinning"
        )
    return TrainingPlan.model_validate(
        plan.model_dump() | {"chains": plan.rounds, "rounds": 1, "prior_source": "cavity", "prior_share": 1.0}
    )
