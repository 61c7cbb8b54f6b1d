"""The words for roles, predictors, adjacency and metrics, the same in tables, figures and report."""

from collections.abc import Iterator, Sequence

from fl_dpbayes.config import PREDICTORS, CalibrationRecord, ReliabilityRecord, Summary
from fl_dpbayes.report.numbers import probability, rounded_up, significant

ROLES = {"held_out": "held-out sites", "shifted": "shifted sites", "train": "training sites"}
SITE_ROLES = {"train": "trains", "held_out": "held out", "shifted": "shifted"}
# Where the posterior is one sample, nothing is averaged.
POINT_PREDICTORS = PREDICTORS | {
    "posterior": "combined point estimate",
    "recalibrated": "recalibrated point estimate",
    "prior_corrected": "point estimate corrected for prevalence",
}
MOSTLY = 0.98  # of a budget
ADJACENCY = {"add_or_remove_one": "adding or removing", "replace_one": "replacing"}


def predictor_name(row: CalibrationRecord | ReliabilityRecord) -> str:
    """Name a row's predictor in words; an unknown one keeps its own name."""
    names = POINT_PREDICTORS if row.samples == 1 else PREDICTORS
    return names.get(row.predictor, row.predictor)


def event(run: Summary) -> str:
    """Name the second of two classes, of which a risk is the probability."""
    return run.class_names[1] if len(run.class_names) == 2 else "class 1"


def neighbours(run: Summary) -> str:
    """Say what two neighbouring data sets of a training site differ by."""
    unit = (
        " or ".join(sorted({site.unit for site in run.sites if site.role == "train" and site.unit}))
        or "record"
    )
    verb = ADJACENCY.get(run.adjacency)
    return f"{verb} one {unit}" if verb else f"{run.adjacency} ({unit})"


def _unspent_text(run: Summary) -> Iterator[str]:
    spent = {
        row.epsilon / row.budget: row
        for row in run.privacy
        if row.status == "OK" and row.epsilon and row.budget
    }
    if run.coupling != "floor" or not spent or min(spent) > MOSTLY:
        return
    row = spent[min(spent)]
    yield (
        f"{row.site} spent {rounded_up(row.epsilon)} of a budget of "
        f"{significant(row.budget)}: coupling 'floor' never "
        "adds less noise than the planned temperature needs, which alone is more private. "
        "More steps or a lower "
        "temperature would use the rest; a smaller budget changes nothing."
    )


def privacy_notes(run: Summary) -> Iterator[str]:
    """Say what the table of privacy means: adjacency, a small delta, unspent budgets, approximations, temperatures."""
    if run.private:
        text, small = (
            f"Two data sets are neighbours if they differ by {neighbours(run)}.",
            run.small_delta,
        )
        methods = ", ".join(
            sorted({row.epsilon_method for row in run.privacy if row.epsilon_method})
        )
        yield f"{text} ε{f', by {methods},' if methods else ''} and μ are rounded up."
        if small is not None:
            yield (
                f"At delta {probability(small.delta)} epsilon of {small.site} is "
                f"{rounded_up(small.epsilon)}."
            )
        yield from _unspent_text(run)
        yield (
            "ε after a round holds if the run's end was fixed beforehand; else the plan's, and "
            "always the budget."
        )
        if run.chains > 1:
            yield f"{run.chains} chains per site: their costs add up to this one account."
        if any(row.recalibration_epsilon is not None for row in run.privacy):
            yield (
                "Recalibration used units kept from training: each unit pays one of the two ε, "
                "so at most the larger."
            )
        if any(row.mu_kind == "clt" for row in run.privacy):
            yield (
                "μ (clt) is an approximation and not an upper bound; the ε beside it does not "
                "come from it."
            )
    else:
        yield (
            "Not private: epsilon is infinite. What the sites released may show any of "
            "their records."
        )
    if run.evaluation_privacy:
        yield (
            "Rows of status evaluation: what noised test results cost, on units that did not train."
        )
    if tempered(run):
        yield (
            "Temperature is the mean over steps, weighted by step size: of the noise alone, 1 is "
            "the posterior."
        )
        if run.aggregation == "fald":
            found = run.averaged_temperature
            yield (
                "The averaged chain's temperature is "
                f"{'not known' if found is None else f'{found:.3g}'}."
            )
        if run.clipped:
            yield (
                "If many gradients are clipped the chain is hotter than shown; the clipped share "
                "stays at each site."
            )
    if run.seeded:
        yield "seeded: not private."


def tempered(run: Summary) -> bool:
    """Say whether any site's chain has a temperature to show."""
    return any(row.temperature is not None for row in run.privacy)


def place_name(site: str) -> str:
    """Name a place of a row: `pooled:<role>` is all sites of that role."""
    kind, _, role = site.partition(":")
    known = role in ROLES and kind in ("pooled", "mean", "median")
    return f"{'all' if kind == 'pooled' else f'{kind} of'} {ROLES[role]}" if known else site


def in_reading_order(rows: Sequence[CalibrationRecord]) -> list[CalibrationRecord]:
    """Order rows as read: medians, pooled, means, sites; held-out before shifted before training.

    Last, posterior.
    """
    kinds, roles = ["median", "pooled", "mean", ""], list(ROLES)
    predictors = {name: at for at, name in enumerate(PREDICTORS)}

    def order(row: CalibrationRecord) -> tuple[int, int, str, int]:
        return (
            kinds.index(row.over),
            roles.index(row.role),
            row.site,
            predictors.get(row.predictor, len(predictors)),
        )

    return sorted(rows, key=order)
