"""The tables of the report page: header and cells as text, ready to be escaped and shown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fl_dpbayes.config.metrics import METRICS
from fl_dpbayes.config.summary import (
    CalibrationRecord,
    EvaluationPrivacyRecord,
    PrivacyRecord,
    ReliabilityRecord,
    Summary,
)
from fl_dpbayes.report.epsilon_figure import EpsilonCurve
from fl_dpbayes.report.numbers import (
    UNDEFINED,
    count,
    data_size,
    decimal,
    duration,
    interval,
    points,
    probability,
    rounded_up,
    significant,
)
from fl_dpbayes.report.wording import in_reading_order, place_name, predictor_name, tempered

Cell = tuple[str, str]  # value and what stands more quietly behind it


@dataclass(frozen=True)
class PageTable:
    """A table of the page.

    Attributes:
        columns: headers.
        rows: as many cells per row as headers.
        text_columns: positions that hold words, aligned left; the others hold numbers.
    """

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    text_columns: frozenset[int] = frozenset({0})


def _cells(values: Iterable[str | Cell]) -> tuple[Cell, ...]:
    return tuple(value if isinstance(value, tuple) else (value, "") for value in values)


def privacy_table(run: Summary) -> PageTable:
    """Show what each site spent on training, then on noised test results; epsilon and mu are rounded up.

    Columns that say nothing in this run are left out: budget, delta and mu without privacy, temperature without one.
    """
    sites = {site.name: site for site in run.sites}
    paid = run.private or bool(run.evaluation_privacy)
    columns = {
        "Site": True,
        "Unit": True,
        "Units n": True,
        "Steps": True,
        "ε spent": True,
        "ε of recalibration": run.private and any(row.recalibration_epsilon is not None for row in run.privacy),
        "Budget": paid,
        "δ": paid,
        "μ": paid,
        "Temperature": tempered(run),
        "Status": True,
    }
    rows = [
        (
            row.site,
            sites[row.site].unit if row.site in sites else row.unit,
            count(sites[row.site].n if row.site in sites else None),
            count(row.steps),
            (rounded_up(row.epsilon), row.epsilon_method if run.private else ""),
            rounded_up(row.recalibration_epsilon),
            *(_account_cells(row) if run.private else ("", "", "")),
            (significant(row.temperature), interval(row.temperature_range, significant)),
            row.status or UNDEFINED,
        )
        for row in run.privacy
    ] + [
        (
            row.site,
            row.unit,
            "",
            "",
            (rounded_up(row.epsilon), row.epsilon_method),
            "",
            *_account_cells(row),
            "",
            "evaluation",
        )
        for row in run.evaluation_privacy
    ]
    shown = [_cells(cell for cell, wanted in zip(row, columns.values(), strict=True) if wanted) for row in rows]
    names = tuple(name for name, wanted in columns.items() if wanted)
    return PageTable(names, shown, frozenset({0, 1, len(names) - 1}))


def _account_cells(row: PrivacyRecord | EvaluationPrivacyRecord) -> tuple[str | Cell, ...]:
    mu = (rounded_up(row.mu), row.mu_kind if row.mu is not None else "")
    return significant(row.budget), probability(row.delta), mu


def settings_table(run: Summary) -> PageTable:
    """Show what was run."""
    return PageTable(("Part", "Settings"), [_cells((row.name, row.value)) for row in run.settings], frozenset({0, 1}))


def calibration_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    """Show the main metrics of the given rows, intervals behind their values."""
    columns = (*_PLACE_COLUMNS, *_MAIN_COLUMNS)
    ordered = in_reading_order(rows)
    cells = [_cells((*place, *_main_cells(row))) for place, row in zip(_places(ordered), ordered, strict=True)]
    return PageTable(columns, cells, frozenset({0, 1}))


def all_metrics_table(rows: Sequence[CalibrationRecord]) -> PageTable:
    """Show every metric of the given rows; binary ECE and accuracy at a coverage where any row has them."""
    binary = any(row.ece_binary is not None for row in rows)
    coverages = sorted({share for row in rows for share in row.accuracy_at_coverage or {}})
    columns = (
        *(*_PLACE_COLUMNS, *_MAIN_COLUMNS, "ACE", "SCE", "MCE", "Epistemic, nats", "Aleatoric, nats"),
        *("ECE, 10 bins", "ECE, 20 bins", "ECE, equal mass", *(("ECE, binary",) if binary else ())),
        *("AURC", "Excess AURC", *(f"Accuracy at coverage {share}" for share in coverages)),
    )
    ordered = in_reading_order(rows)
    cells = []
    for place, row in zip(_places(ordered), ordered, strict=True):
        shared = (points(row.ace), points(row.sce), points(row.mce), decimal(row.epistemic), decimal(row.aleatoric))
        bins = (row.ece_10, row.ece_20, row.ece_equal_mass, *((row.ece_binary,) if binary else ()))
        kept = row.accuracy_at_coverage or {}
        further = (
            *shared,
            *map(points, bins),
            *map(decimal, (row.aurc, row.aurc_excess)),
            *(points(kept.get(share)) for share in coverages),
        )
        cells.append(_cells((*place, *_main_cells(row), *further)))
    return PageTable(columns, cells, frozenset({0, 1}))


_PLACE_COLUMNS = ("Where", "Predictor", "n")
_MAIN_COLUMNS = ("RMS debiased", "ECE (if calibrated)", "Accuracy, %", "NLL", "Brier", "AUROC [bounds]")


def _places(rows: Sequence[CalibrationRecord]) -> list[tuple[str, str, str]]:
    """Name the place of each row, once for the rows that share it."""
    names: list[tuple[str, str, str]] = []
    previous = ""
    for row in rows:
        repeated = row.site == previous
        names.append(("" if repeated else place_name(row), predictor_name(row), count(row.n)))
        previous = row.site
    return names


def _main_cells(row: CalibrationRecord) -> tuple[str | Cell, ...]:
    ends = row.intervals
    return (
        (points(row.rms_debiased), interval(ends.get("rms_debiased"), points)),
        (points(row.ece), f"({points(row.ece_if_calibrated)})"),
        (points(row.accuracy), interval(ends.get("accuracy"), points)),
        (decimal(row.nll), interval(ends.get("nll"), decimal)),
        decimal(row.brier),
        (decimal(row.auroc), interval(row.auroc_bounds, decimal)),
    )


def site_table(run: Summary) -> PageTable:
    """Show who took part: role, size, shift."""
    rows = [
        _cells(
            (
                site.name,
                {"train": "trains", "held_out": "held out", "shifted": "shifted"}[site.role],
                (count(site.n), f"{site.unit}s" if site.unit and site.n != 1 else site.unit),
                count(site.test_n),
                site.shift or "none",
            )
        )
        for site in run.sites
    ]
    return PageTable(("Site", "Role", "Units n", "Test records", "Shift"), rows, frozenset({0, 1, 4}))


def participation_table(run: Summary) -> PageTable:
    """Show which training sites answered in which rounds."""
    rows = []
    for row in run.participation:
        used = sum(status in ("OK", "PARTIAL") for status in row.statuses)
        spans = ", ".join(f"{_rounds(first, last)} {status}" for first, last, status in _spans(row.statuses))
        rows.append(_cells((row.site, f"{used} of {len(row.statuses)}", spans)))
    return PageTable(("Site", "Rounds used", "Round by round"), rows, frozenset({0, 2}))


def _spans(statuses: Sequence[str]) -> list[tuple[int, int, str]]:
    """Join rounds in a row that went alike."""
    spans: list[tuple[int, int, str]] = []
    for number, status in enumerate(statuses, start=1):
        first = spans.pop()[0] if spans and spans[-1][2] == status else number
        spans.append((first, number, status))
    return spans


def _rounds(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def release_table(run: Summary) -> PageTable:
    """Show what left a site, and how."""
    rows = [_cells((release.item, release.how)) for release in run.releases]
    return PageTable(("What", "How it left a site"), rows, frozenset({0, 1}))


def reliability_table(row: ReliabilityRecord) -> PageTable:
    """Show the bins of one reliability diagram."""
    rows = [
        _cells(
            (
                f"{points(part.low)} to {points(part.high)}",
                count(part.n),
                points(part.confidence),
                points(part.accuracy),
                interval((part.band_low, part.band_high), points) or UNDEFINED,
            )
        )
        for part in row.bins
        if part.n
    ]
    return PageTable(("Confidence %", "Records", "Mean confidence %", "Accuracy %", "Band if calibrated"), rows)


def epsilon_table(curves: Sequence[EpsilonCurve]) -> PageTable:
    """Show epsilon after each round, a row per site."""
    rounds = sorted({number for curve in curves for number in curve.rounds})
    rows = []
    for curve in curves:
        spent = dict(zip(curve.rounds, curve.epsilons, strict=True))
        rows.append(_cells((curve.site, *(rounded_up(spent.get(number)) for number in rounds))))
    return PageTable(("Site", *(f"Round {number}" for number in rounds)), rows)


def cost_table(run: Summary) -> PageTable:
    """Show bytes and seconds of the run."""
    up, down = run.bytes.up, run.bytes.down
    rows = [
        _cells(("Bytes sent by all sites", data_size(sum(up) if up else None), _largest(up))),
        _cells(("Bytes sent to all sites", data_size(sum(down) if down else None), _largest(down))),
        *(_cells((f"Time: {stage}", duration(seconds), "")) for stage, seconds in run.seconds.items()),
    ]
    return PageTable(("", "Total", "Largest round"), rows)


def _largest(sizes: Sequence[int]) -> str:
    return data_size(max(sizes)) if sizes else UNDEFINED


def metric_table(rows: Sequence[CalibrationRecord], metric: str) -> PageTable:
    """Show one metric at every place, a column per predictor."""
    ordered = in_reading_order(rows)
    predictors = {row.predictor: predictor_name(row) for row in ordered}
    write = points if METRICS[metric].unit == "share" else decimal
    places: dict[str, dict[str, Cell]] = {}
    for row in ordered:
        cell = (write(getattr(row, metric)), interval(row.intervals.get(metric), write))
        places.setdefault(place_name(row), {})[row.predictor] = cell
    cells = [
        _cells((place, *(found.get(predictor, (UNDEFINED, "")) for predictor in predictors)))
        for place, found in places.items()
    ]
    return PageTable(("Where", *predictors.values()), cells)


def facts(run: Summary) -> Mapping[str, str]:
    """Return the run's identity: scenario, aggregation, seed, heterogeneity, versions."""
    known = {
        "Scenario": run.scenario,
        "Aggregation": run.aggregation,
        **_aggregation_inputs(run),
        "Resumed": _resumed(run.resumed_after),
        "Seed of partition and model": "" if run.seed is None else str(run.seed),
        "Label heterogeneity (mean total variation)": "" if run.heterogeneity is None else decimal(run.heterogeneity),
        "Configurations tried": "" if run.configurations_tried is None else count(run.configurations_tried),
        "Versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    return {name: value for name, value in known.items() if value}


def _resumed(rounds: Sequence[int]) -> str:
    """Say after which rounds a run that was cut off went on."""
    if not rounds:
        return ""
    return ", ".join(f"after round {number}" if number else "before round 1" for number in rounds)


def _aggregation_inputs(run: Summary) -> dict[str, str]:
    """Say what the server used beyond released samples, and what it made of it."""
    inputs = run.aggregation_inputs
    if inputs is None:
        return {}
    number = "" if inputs.count is None else f"{count(inputs.count)} "
    if inputs.kind == "file":
        labelled = "with labels" if inputs.labelled else "labels not used"
        used = f"{number}records of {inputs.file}, {labelled}, declared public: {inputs.statement}"
    else:
        used = f"{number}made-up inputs ({inputs.pattern}), no record"
    return {
        "Server's own inputs": used,
        "beta of PredBayes": "" if inputs.beta is None else decimal(inputs.beta),
        "Divergence of the distilled network from its teacher, nats per input": (
            "" if inputs.divergence is None else decimal(inputs.divergence)
        ),
    }
