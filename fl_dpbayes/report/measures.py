"""What the page shows beyond calibration itself, gathered from a run's summary; a part without data is empty."""

from dataclasses import dataclass

from fl_dpbayes.config.summary import CalibrationRecord, ReliabilityRecord, Role, Summary
from fl_dpbayes.report.headline import headline_predictor
from fl_dpbayes.report.measure_tables import (
    clinical_table,
    conformal_table,
    shift_detection_table,
    split_rows,
    subgroup_table,
    truth_table,
)
from fl_dpbayes.report.numbers import count
from fl_dpbayes.report.page_tables import PageTable
from fl_dpbayes.report.wording import ROLES, predictor_name


@dataclass(frozen=True)
class Measures:
    """Tables of the page, each with what is read first, then the rest: single sites, further predictors.

    Attributes:
        headline: the predictor of subgroups and prediction sets that are read first, in words.
        level: the coverage that prediction sets were asked to have, in percent.
        calibrated_on: what the prediction sets were calibrated on, with its number of records.
        reference_records: how many records of training sites the uncertainty of others is held against.
    """

    headline: str
    subgroups: PageTable
    further_subgroups: PageTable
    clinical: PageTable
    further_clinical: PageTable
    conformal: PageTable
    further_conformal: PageTable
    level: str
    calibrated_on: str
    shift_detection: PageTable
    reference_records: str
    truth: PageTable
    further_truth: PageTable


def gather_measures(run: Summary) -> Measures:
    """Gather the tables of everything that was measured beyond calibration."""
    groups = [row for row in run.subgroups if row.n]
    clinical = [row for row in run.places if row.calibration_intercept is not None or row.calibration_slope is not None]
    known = [row for row in run.places if row.rms_true is not None or row.ece_true is not None]
    sets = {(row.calibrated_on, row.n_calibration) for row in run.conformal}
    compared = {row.n_reference for row in run.shift_detection if row.n_reference}
    headline = headline_predictor(run)
    subgroups, further_subgroups = split_rows(groups, headline)
    lines, further_lines = split_rows(clinical)
    conformal, further_conformal = split_rows(run.conformal, headline)
    truths, further_truths = split_rows(known)
    return Measures(
        headline=next((predictor_name(row) for row in run.places if row.predictor == headline), ""),
        subgroups=subgroup_table(subgroups),
        further_subgroups=subgroup_table(further_subgroups),
        clinical=clinical_table(lines),
        further_clinical=clinical_table(further_lines),
        conformal=conformal_table(run, conformal),
        further_conformal=conformal_table(run, further_conformal),
        level=", ".join(f"{100 * level:g}%" for level in sorted({row.level for row in run.conformal})),
        calibrated_on=", ".join(f"the {words} (n = {count(n)})" for words, n in sorted(sets, key=str)),
        shift_detection=shift_detection_table(run),
        reference_records=", ".join(count(n) for n in sorted(compared)),
        truth=truth_table(truths),
        further_truth=truth_table(further_truths),
    )


def site_reliability(run: Summary) -> list[ReliabilityRecord]:
    """Return the diagrams of single sites that hold a record: one predictor, roles and sites in reading order."""
    predictor, roles = headline_predictor(run), list(ROLES)
    rows = [
        row
        for row in run.reliability
        if row.site in {site.name for site in run.sites} and row.predictor == predictor and any(p.n for p in row.bins)
    ]
    return sorted(rows, key=lambda row: (roles.index(row.role), row.site))


def decision_curves(run: Summary) -> dict[Role, list[CalibrationRecord]]:
    """Return the rows with a decision curve over all sites of each role, the headline predictor first."""
    headline = headline_predictor(run)
    found: dict[Role, list[CalibrationRecord]] = {}
    for role in ROLES:
        rows = [row for row in run.calibration if row.pooled and row.role == role and row.net_benefit]
        if rows:
            found[rows[0].role] = sorted(rows, key=lambda row: row.predictor != headline)
    return found
