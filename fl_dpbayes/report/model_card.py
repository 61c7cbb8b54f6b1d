"""The model card of a run: items of TRIPOD+AI, as far as a run knows them.

Source: Collins et al., BMJ 385:e078378, 2024.
"""

from fl_dpbayes.calibration import METRICS
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.numbers import count
from fl_dpbayes.report.page_tables import facts
from fl_dpbayes.report.summary import Summary
from fl_dpbayes.report.wording import event

UNKNOWN = "not known to the run"


def model_card(run: Summary) -> dict[str, str]:
    """Return item -> what the run knows of it; what only people know says so."""
    settings = {row.name: row.value for row in run.settings}
    run_facts = facts(run)
    run_answer = answer(run)
    trained = sum(site.n or 0 for site in run.trained)
    seen = sum(site.test_n or 0 for site in run.sites if site.role == "train")
    unseen = sum(site.test_n or 0 for site in run.sites if site.role != "train")
    parts = f" ({count(unseen)} where it did not train + {count(seen)} where it did)"
    attributes = sorted({row.attribute for row in run.subgroups})
    fairness = "no subgroup was measured"
    if attributes:
        fairness = f"measured by {', '.join(attributes)}: see Subgroups"
    return {
        "Title and purpose": run.description or run.scenario,
        "Source of data": run.data or UNKNOWN,
        "Setting and dates of the data": f"{len(run.sites)} sites; dates {UNKNOWN}",
        "Who could be included (eligibility)": UNKNOWN,
        "Treatments received": UNKNOWN,
        "Outcome": _outcome(run),
        "Predictors": settings.get("Predictors", UNKNOWN),
        "Sample size": (
            f"{count(trained)} units trained, {count(seen + unseen)} records tested"
            f"{parts if seen and unseen else ''}; why so many is {UNKNOWN}"
        ),
        "Missing data": settings.get("Missing values", UNKNOWN),
        "Model": "; ".join(
            f"{name.lower()}: {settings[name]}"
            for name in ("Model", "Features", "Sampler")
            if name in settings
        ),
        "Tuning": f"configurations tried: {run_facts.get('Configurations tried', UNKNOWN)}",
        "Performance measures": (
            run.measures.performance or ", ".join(METRICS[key].name for key in run.measures.first)
        ),
        "Fairness": fairness,
        "Result": run_answer.calibration,
        "Use": run_answer.advice,
        "Privacy": run_answer.privacy,
        "Code": run_facts.get("Versions", UNKNOWN),
        "Funding, conflicts, ethics, registration, patient involvement": UNKNOWN,
    }


def _outcome(run: Summary) -> str:
    """Say what is predicted, and how often the second of two classes happens at sites."""
    unnamed = run.outcome.description if run.outcome else "classes without names"
    outcome = ", ".join(run.class_names) or unnamed
    percents = [100 * site.shares[1] for site in run.sites if site.shares and len(site.shares) == 2]
    if percents:
        outcome += (
            f"; {event(run)} in {min(percents):.0f}% to {max(percents):.0f}% of a site's "
            "test records"
        )
    return outcome
