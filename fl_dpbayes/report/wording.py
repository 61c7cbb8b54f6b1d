"""The words for roles, predictors, adjacency and metrics, the same in tables, figures and report."""

from collections.abc import Sequence

from fl_dpbayes.config.names import PREDICTORS
from fl_dpbayes.config.summary import CalibrationRecord, ReliabilityRecord, Summary
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
    unit = " or ".join(sorted({site.unit for site in run.sites if site.role == "train" and site.unit})) or "record"
    verb = ADJACENCY.get(run.adjacency)
    return f"{verb} one {unit}" if verb else f"{run.adjacency} ({unit})"


def account_notes(run: Summary) -> str:
    """Say what the largest epsilon is at a small delta, unless the run's own is as small, and why budget is left."""
    text, small = "", run.small_delta
    if small is not None:
        text = f"At delta {probability(small.delta)} epsilon of {small.site} is {rounded_up(small.epsilon)}."
    return f"{text} {_unspent_text(run)}".strip()


def _unspent_text(run: Summary) -> str:
    spent = {row.epsilon / row.budget: row for row in run.privacy if row.status == "OK" and row.epsilon and row.budget}
    if run.coupling != "floor" or not spent or min(spent) > MOSTLY:
        return ""
    row = spent[min(spent)]
    return (
        f"{row.site} spent {rounded_up(row.epsilon)} of a budget of {significant(row.budget)}: coupling 'floor' never "
        "adds less noise than the planned temperature needs, which alone is more private. More steps or a lower "
        "temperature would use the rest; a smaller budget changes nothing."
    )


def tempered(run: Summary) -> bool:
    """Say whether any site's chain has a temperature to show."""
    return any(row.temperature is not None for row in run.privacy)


def temperature_notes(run: Summary) -> list[str]:
    """Say what the temperatures of a run's sites are, and what they leave out; nothing where there are none."""
    if not tempered(run):
        return []
    notes = ["of the noise alone, 1 is the posterior"]
    if run.aggregation == "fald":
        found = run.averaged_temperature
        notes.append("the averaged chain's is " + ("not known" if found is None else f"{found:.3g}"))
    if run.clipped:
        notes.append(
            "clipped gradients pull less, so where many are clipped the chain is hotter than shown and its target "
            "another; the clipped share stays at each site, in its own trace"
        )
    return notes


def place_name(site: str) -> str:
    """Name a place of a row: `pooled:<role>` is all sites of that role."""
    kind, _, role = site.partition(":")
    known = role in ROLES and kind in ("pooled", "mean", "median")
    return f"{'all' if kind == 'pooled' else f'{kind} of'} {ROLES[role]}" if known else site


def in_reading_order(rows: Sequence[CalibrationRecord]) -> list[CalibrationRecord]:
    """Order rows as read: medians, pooled, means, sites; held-out before shifted before training; last, posterior."""
    kinds, roles = ["median", "pooled", "mean", ""], list(ROLES)
    predictors = {name: at for at, name in enumerate(PREDICTORS)}

    def order(row: CalibrationRecord) -> tuple[int, int, str, int]:
        return kinds.index(row.over), roles.index(row.role), row.site, predictors.get(row.predictor, len(predictors))

    return sorted(rows, key=order)
