"""The words for roles, predictors and adjacency, and the notes below the table of privacy."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from fl_dpbayes.calibration import CalibrationRecord, ReliabilityRecord, Verdict
from fl_dpbayes.config import PREDICTORS
from fl_dpbayes.report.numbers import probability, rounded_up, significant
from fl_dpbayes.report.summary import Summary

RowT = TypeVar("RowT", bound=CalibrationRecord)
ROLES = {"held_out": "held-out sites", "shifted": "shifted sites", "train": "training sites"}
SITE_ROLES = {"train": "trains", "held_out": "held out", "shifted": "shifted"}
# Where the posterior is one sample, nothing is averaged.
POINT_PREDICTORS = PREDICTORS | {
    "posterior": "combined point estimate",
    "recalibrated": "recalibrated point estimate",
    "prior_corrected": "point estimate corrected for prevalence",
}
NOT_PRIVATE = (
    "Not private: epsilon is infinite. What the sites released may show any of their records."
)
CONSTANT_NOISE = (
    "The noise is constant: samples are averaged as in DP-SGD, and how far they spread (epistemic "
    "uncertainty) follows the privacy noise. It is not the posterior's uncertainty."
)
NOISED_NOTE = (
    "Noised: the sums left with privacy noise, which the intervals hold. Cannot tell: the interval "
    "is too wide to say anything."
)
# What each word of `calibration.verdict` says of 95 % intervals.
VERDICT_RULES: Mapping[Verdict, str] = {
    "fits here": (
        "No large error was seen: the odds of the risks are off by less than a factor of 2, and "
        "patients are in a better order than by chance."
    ),
    "recalibrate first": "The order is there, but the level or the spread of the risks is off.",
    "does not fit": "There is hardly any order (AUROC below 0.6).",
    "too few to tell": "The patients seen so far leave it open.",
}
FOR_RESEARCH = "For research: not for decisions about a patient. This is no medical device."
SMALL_PRINT = (
    "Small print: 95% intervals, off which the words are read, for patients like those tested. "
    '"Fits here" says that no large error was seen.'
)
# A share of the budget: a site that spent more than this left nothing worth a note.
MOST_OF_BUDGET = 0.98
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
    units = {site.unit for site in run.sites if site.role == "train" and site.unit}
    unit = " or ".join(sorted(units)) or "record"
    verb = ADJACENCY.get(run.adjacency)
    return f"{verb} one {unit}" if verb else f"{run.adjacency} ({unit})"


def privacy_notes(run: Summary) -> Iterator[str]:
    """Say what the table of privacy means: adjacency, budgets, approximations, temperatures."""
    if run.private:
        yield from _epsilon_notes(run)
    else:
        yield NOT_PRIVATE
    if run.evaluation_privacy:
        yield (
            "Rows of status evaluation: what noised test results cost, on units that did not train."
        )
    if tempered(run):
        yield from _temperature_notes(run)
    if run.seeded:
        yield "seeded: not private."


def _epsilon_notes(run: Summary) -> Iterator[str]:
    by_methods = f", by {run.epsilon_methods}," if run.epsilon_methods else ""
    yield (
        f"Two data sets are neighbours if they differ by {neighbours(run)}. "
        f"ε{by_methods} and μ are rounded up."
    )
    small = run.small_delta
    if small is not None:
        yield (
            f"At delta {probability(small.delta)} epsilon of {small.site} is "
            f"{rounded_up(small.epsilon)}."
        )
    unspent = unspent_budget(run)
    if unspent:
        yield unspent
    yield "If you stop early because of what you saw, count the full plan."
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


def unspent_budget(run: Summary) -> str:
    """Say whose budget was left most, where coupling 'floor' is why; "" where none was."""
    if run.coupling != "floor":
        return ""
    by_share = {
        row.epsilon / row.budget: row
        for row in run.privacy
        if row.status == "OK" and row.epsilon and row.budget
    }
    if not by_share or min(by_share) > MOST_OF_BUDGET:
        return ""
    row = by_share[min(by_share)]
    return (
        f"{row.site} spent {rounded_up(row.epsilon)} of a budget of {significant(row.budget)}. "
        "Less was spent than allowed: the sampler itself needs this much noise. Coupling "
        "'constant' would spend all of it."
    )


def _temperature_notes(run: Summary) -> Iterator[str]:
    yield (
        "Temperature is the mean over steps, weighted by step size: of the noise alone, 1 is "
        "the posterior."
    )
    if run.aggregation == "fald":
        temperature = run.averaged_temperature
        text = "not known" if temperature is None else f"{temperature:.3g}"
        yield f"The averaged chain's temperature is {text}."
    if run.coupling == "constant":
        yield CONSTANT_NOISE
    if run.clipped:
        yield (
            "If many gradients are clipped the chain is hotter than shown; the clipped share "
            "stays at each site."
        )


def tempered(run: Summary) -> bool:
    """Say whether any site's chain has a temperature to show."""
    return any(row.temperature is not None for row in run.privacy)


def place_name(site: str) -> str:
    """Name a place of a row: `pooled:<role>` is all sites of that role."""
    kind, _, role = site.partition(":")
    if role not in ROLES or kind not in ("pooled", "mean", "median"):
        return site
    return f"all {ROLES[role]}" if kind == "pooled" else f"{kind} of {ROLES[role]}"


def in_reading_order(rows: Sequence[RowT]) -> list[RowT]:
    """Order rows as read: medians, pooled, means, sites; held-out before shifted before training.

    Rows of one place stand in the order of `PREDICTORS`.
    """
    kinds = ["median", "pooled", "mean", ""]
    roles = list(ROLES)
    predictors = {name: position for position, name in enumerate(PREDICTORS)}

    def order(row: RowT) -> tuple[int, int, str, int]:
        return (
            kinds.index(row.over),
            roles.index(row.role),
            row.site,
            predictors.get(row.predictor, len(predictors)),
        )

    return sorted(rows, key=order)
