"""The model card of a run: items of TRIPOD+AI (Collins et al., BMJ 385:e078378, 2024), as far as a run knows them."""

from fl_dpbayes.config import Summary
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.numbers import count
from fl_dpbayes.report.page_tables import facts
from fl_dpbayes.report.wording import event

UNKNOWN = "not known to the run"


def model_card(run: Summary) -> dict[str, str]:
    """Return item -> what the run knows of it; what only people know says so."""
    settings, found = {row.name: row.value for row in run.settings}, answer(run)
    groups = ", ".join(sorted({row.attribute for row in run.subgroups}))
    shares = [100 * site.shares[1] for site in run.sites if site.shares and len(site.shares) == 2]
    outcome = ", ".join(run.class_names) or "classes without names"
    if shares:
        outcome += (
            f"; {event(run)} in {min(shares):.0f}% to {max(shares):.0f}% of a site's test records"
        )
    units = sum(site.n or 0 for site in run.trained)
    tested = sum(site.test_n or 0 for site in run.sites)
    return {
        "Title and purpose": run.description or run.scenario,
        "Source of data": run.data or UNKNOWN,
        "Setting and dates of the data": f"{len(run.sites)} sites; dates {UNKNOWN}",
        "Who could be included (eligibility)": UNKNOWN,
        "Treatments received": UNKNOWN,
        "Outcome": outcome,
        "Predictors": settings.get("Predictors", UNKNOWN),
        "Sample size": (
            f"{count(units)} units trained, {count(tested)} records tested; why so many "
            f"is {UNKNOWN}"
        ),
        "Missing data": settings.get("Missing values", UNKNOWN),
        "Model": "; ".join(
            f"{name.lower()}: {settings[name]}"
            for name in ("Model", "Features", "Sampler")
            if name in settings
        ),
        "Tuning": f"configurations tried: {facts(run).get('Configurations tried', UNKNOWN)}",
        "Performance measures": (
            "calibration (debiased RMS, ECE, intercept, slope), AUROC, NLL and net benefit"
        ),
        "Fairness": f"measured by {groups}: see Subgroups"
        if groups
        else "no subgroup was measured",
        "Result": found.calibration,
        "Use": found.advice,
        "Privacy": found.privacy,
        "Code": facts(run).get("Versions", UNKNOWN),
        "Funding, conflicts, ethics, registration, patient involvement": UNKNOWN,
    }
