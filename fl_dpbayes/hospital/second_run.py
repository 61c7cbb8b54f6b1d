"""Says what a second run of a plan would cost a site, while its budget can still be declared."""

from fl_dpbayes.config import Scenario, site_plan
from fl_dpbayes.hospital.findings import Finding, passed, warned
from fl_dpbayes.privacy import Budget, filter_orders, price_of_second_run, solve_plan
from fl_dpbayes.report import rounded_up

RULES = {
    "fixed schedule": (
        "runs declared ahead count as one plan, the whole of it from the second run on"
    ),
    "rdp filter": "across runs the Renyi filter counts, which is dearer than one plan",
    "gdp filter": "full batches compose exactly",
}


def second_run(scenario: Scenario, units: int, epsilon: float, planned_runs: int = 1) -> Finding:
    """Say what the scenario's plan costs once, and what a second time after it.

    Args:
        scenario: The coordinator's.
        units: n of the site, as it declares it.
        epsilon: What each part of the cohort may ever spend.
        planned_runs: How many runs the cohort is declared for.

    Returns:
        A warning where a second run is dearer than it need be, or has no room.
    """
    privacy = scenario.privacy
    training_sites = sum(site.role == "train" for site in scenario.sites.values())
    plan = site_plan(scenario, training_sites)
    budget = Budget(
        epsilon, privacy.delta, privacy.adjacency, filter_orders(epsilon, privacy.delta)
    )
    history = solve_plan(plan, units).history
    price = price_of_second_run(history, budget, planned_runs)
    first_cost = f"the first run costs epsilon {rounded_up(price.first)}"
    if price.admitted == 0:
        return warned(
            "second run",
            f"{first_cost}; the budget of {rounded_up(epsilon)} has no room for a second",
        )
    message = (
        f"{first_cost}; the first step of a second one makes it {rounded_up(price.after_one)}, "
        f"its {price.admitted} of {price.steps} steps {rounded_up(price.whole)}, of "
        f"{rounded_up(epsilon)} ({RULES[price.rule]})"
    )
    if planned_runs > 1 or price.rule == "gdp filter":
        return passed("second run", message)
    remedy = (
        "declared when the ledger is made (planned_runs = 2), both cost "
        f"{rounded_up(price.as_one_plan)}"
    )
    return warned("second run", message, remedy)
