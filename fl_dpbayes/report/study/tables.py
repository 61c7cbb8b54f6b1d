"""The tables of a study's page."""

from itertools import product
from typing import Any

from fl_dpbayes.report.numbers import UNDEFINED, decimal, interval, probability, rounded_up, significant
from fl_dpbayes.report.page_tables import Cell, PageTable
from fl_dpbayes.report.study.comparisons import beside_baseline, differences, estimate, setting_words
from fl_dpbayes.report.study.panels import PanelFigure
from fl_dpbayes.report.study.quantities import Estimate, Quantity, axis_name, quantity
from fl_dpbayes.report.study.results import PREDICTOR, SEED, StudyResults, label_text

MOST_ROWS = 2_000
ASKED = "privacy.epsilon"


def figure_table(figure: PanelFigure) -> PageTable:
    """List the numbers of a figure: each mean, its interval, and over how many seeds and settings it goes."""

    def write(value: float | None) -> str:
        return decimal(None if value is None else figure.scale * value, figure.places)

    rows = []
    for panel in figure.panels:
        for line in panel.lines:
            for mark in line.marks:
                value = mark.value
                cells = (panel.title, mark.where, line.words, write(value.mean), interval(value.ends, write))
                rows.append(tuple((text, "") for text in (*cells, str(value.seeds), str(value.settings))))
    columns = ("Panel", "At", "Line", figure.quantity, "95% interval", "Seeds", "Settings")
    return PageTable(columns, rows[:MOST_ROWS], frozenset({0, 1, 2}))


def differences_table(study: StudyResults) -> PageTable:
    """List the paired differences of all metrics over all settings, or at each that the study keeps apart."""
    rows, apart = [], bool(study.baseline)
    for metric in study.record.metrics:
        measured = quantity(metric)
        for one in differences(study, metric):
            method, baseline = (study.words(one.axis, label) for label in (one.method, one.baseline))
            value = one.value
            ends = _ends(measured, value)
            compared = (
                axis_name(one.axis),
                *((one.at,) if apart else ()),
                f"{method} – {baseline}",
                measured.metric.name,
            )
            cells = (*compared, measured.value(value.mean), ends)
            rows.append(tuple((text, "") for text in (*cells, str(value.seeds), str(value.settings))))
    first = ("Compared", "At", "Difference") if apart else ("Compared", "Difference")
    columns = (*first, "Metric", "Mean", "95% interval", "Seeds", "Settings")
    return PageTable(columns, rows, frozenset(range(4 if apart else 3)))


def baseline_table(study: StudyResults) -> PageTable:
    """List every method at every setting that the study keeps apart, by all metrics, beside the declared baseline."""
    measured = [quantity(metric) for metric in study.record.metrics]
    columns: dict[tuple[str, str], list[Cell]] = {}
    for one in measured:
        for row in beside_baseline(study, one.key):
            cells = columns.setdefault((setting_words(study, row.at), setting_words(study, row.method)), [])
            cells.append((one.value(row.value.mean), _ends(one, row.value)))
            less = UNDEFINED if row.difference is None else f"{one.value(row.difference.mean)}"
            cells.append(("baseline", "") if row.is_baseline else (less, _ends(one, row.difference)))
    rows = [((at, ""), (method, ""), *cells) for (at, method), cells in columns.items()]
    heads = [head for one in measured for head in (one.metric.name, "less baseline")]
    return PageTable(("At", "Method", *heads), rows, frozenset({0, 1}))


def _bounds(frame: Any, measured: Quantity) -> str:
    """Write what sums leave open of a metric that ranks records: the mean of each end."""
    ends = [f"{measured.key}_{end}" for end in ("low", "high")]
    if not measured.metric.bounded or not set(ends) <= set(frame.columns):
        return ""
    low, high = (float(frame[end].mean()) for end in ends)
    return f", bounds {interval((low, high), measured.value)}"


def _ends(measured: Quantity, value: Estimate | None) -> str:
    return "" if value is None else interval(value.ends, measured.value)


def settings_table(study: StudyResults) -> PageTable:
    """List every setting and predictor at the study's place: means over seeds with intervals."""
    frame, axes = study.headline, study.axes
    measured = [quantity(metric) for metric in study.record.metrics if metric in frame.columns]
    rows = []
    for labels in product(*axes.values()):
        here = _at(frame, dict(zip(axes, labels, strict=True)))
        for predictor in study.predictors(here):
            of_predictor = here[here[PREDICTOR] == predictor]
            cells: list[tuple[str, str]] = [(label, "") for label in labels]
            cells.append((study.words(PREDICTOR, predictor), ""))
            for one in measured:
                value = estimate(of_predictor, one.key)
                ends = f"{_ends(one, value)}{_bounds(of_predictor, one)}"
                cells.append((one.value(value.mean) if value else UNDEFINED, ends))
            rows.append((*cells, (str(of_predictor[SEED].nunique()), "")))
    columns = (*map(axis_name, axes), "Predictor", *(one.metric.name for one in measured), "Seeds")
    return PageTable(columns, rows[:MOST_ROWS], frozenset(range(len(axes) + 1)))


def paper_table(study: StudyResults) -> PageTable:
    """List what the paper prints beside the mean of ours over seeds, in the paper's units."""
    rows = []
    for row in study.paper.to_dict("records"):
        first = (*(str(row[axis] or "all") for axis in study.axes), study.words(PREDICTOR, row[PREDICTOR]), row["site"])
        values = (decimal(row[name], 4) for name in ("paper", "measured"))
        ends = interval((row["low"], row["high"]), lambda end: decimal(end, 4)) if row["seeds"] > 1 else ""
        rows.append(tuple((str(text), "") for text in (*first, row["column"], *values, ends, row["seeds"])))
    columns = (*map(axis_name, study.axes), "Predictor", "At", "Column", "Paper", "Measured", "95% interval", "Seeds")
    return PageTable(columns, rows, frozenset(range(len(study.axes) + 3)))


def spent_table(study: StudyResults) -> PageTable:
    """List the epsilon asked and the largest one that any site of any run spent; rounded up."""
    return _privacy_table(study, [axis for axis in study.axes if axis == ASKED])


def privacy_table(study: StudyResults) -> PageTable:
    """List the epsilon asked and the largest one that any site spent, for every setting; rounded up."""
    return _privacy_table(study, list(study.axes))


def _privacy_table(study: StudyResults, axes: list[str]) -> PageTable:
    frame = study.results
    if frame.empty or "epsilon" not in frame.columns:
        return PageTable(("Setting",), [])
    cells = frame.drop_duplicates("cell")
    privacy: dict[str, Any] = study.settings.get("privacy") or {}
    delta = privacy.get("delta")
    rows = []
    for labels in product(*(study.axes[axis] for axis in axes)):
        setting = dict(zip(axes, labels, strict=True))
        here = _at(cells, setting)
        if here.empty:
            continue
        # A run whose largest epsilon is not known must not look cheap.
        spent = here["epsilon"].max(skipna=False)
        more = (
            _asked(setting.get(ASKED, privacy.get("epsilon"))),
            rounded_up(float(spent)),
            probability(float(delta)) if isinstance(delta, int | float) else UNDEFINED,
            f"{here['seconds'].mean():.0f}" if "seconds" in here.columns else UNDEFINED,
            str(len(here)),
        )
        shown = [label for axis, label in setting.items() if axis != ASKED]
        rows.append(tuple((text, "") for text in (*shown, *more)))
    names = [axis_name(axis) for axis in axes if axis != ASKED]
    columns = (*names, "ε asked", "Largest ε of a site", "δ", "Seconds of a cell", "Cells")
    return PageTable(columns, rows[:MOST_ROWS], frozenset(range(len(names))))


def _asked(epsilon: object) -> str:
    try:
        return significant(float(str(epsilon)))
    except ValueError:
        return UNDEFINED


def failures_table(study: StudyResults) -> PageTable:
    """List the cells that failed."""
    rows: list[tuple[Cell, ...]] = [
        ((", ".join(f"{axis} {label_text(label)}" for axis, label in one.labels.items()), ""), (one.error, ""))
        for one in study.record.failed
    ]
    return PageTable(("Cell", "Error"), rows[:MOST_ROWS], frozenset({0, 1}))


def _at(frame: Any, setting: dict[str, str]) -> Any:
    for axis, label in setting.items():
        if axis in frame.columns:
            frame = frame[frame[axis] == label]
    return frame
