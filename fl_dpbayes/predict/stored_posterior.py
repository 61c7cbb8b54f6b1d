"""The work behind `predict` and `evaluate`: a run's stored posterior on new records, on this machine alone."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas
from rich.console import Console
from rich.table import Table
from scipy.special import entr
from torch import nn

from fl_dpbayes.calibration import (
    METRICS,
    CalibrationStatistics,
    describe,
    exact_auroc,
    from_batch,
    recalibrate,
    reliability_bins,
    roc_points,
)
from fl_dpbayes.calibration.summarise import summarise
from fl_dpbayes.config import (
    PREDICTORS,
    BuiltIn,
    RecalibrationMap,
    Scenario,
    backbone_folder,
    load_scenario,
    outside_text,
    site_name,
)
from fl_dpbayes.data import SCENARIO_FILE
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import digest, json_values
from fl_dpbayes.models import build_model, model_shapes
from fl_dpbayes.models.feature_map import feature_map
from fl_dpbayes.models.frozen_body import frozen_body
from fl_dpbayes.posterior import (
    POSTERIOR_FILE,
    StoredPosterior,
    load_posterior,
    one_sample_warning,
    predict,
    with_intercept,
)
from fl_dpbayes.predict.hospital_posterior import NEW_HOSPITAL, Hospital
from fl_dpbayes.predict.new_records import NewData, NewRecords, read_new_records
from fl_dpbayes.protocol import RECALIBRATED
from fl_dpbayes.report import (
    SUMMARY_FILE,
    Summary,
    check_not_cut_off,
    decimal,
    interval,
    points,
    read_summary,
    sentence,
)
from fl_dpbayes.report.terminal_table import terminal_table
from fl_dpbayes.version import __version__

Allowed = Collection[str]
# The data folder, where backbones lie, and the code that may be imported.
Places = tuple[Path | None, Allowed]
NOWHERE: Places = (None, ())
MOST_NAMED = 10
NO_SETS = "; nothing guarantees that without sets from own labelled patients (update --sets)"
UNCERTAINTIES = ("total", "aleatoric", "epistemic")
SHOWN = (
    "accuracy",
    "nll",
    "brier",
    "ece",
    "rms_debiased",
    "mce",
    "ace",
    "sce",
    "auroc",
    *reversed(UNCERTAINTIES[1:]),
)


def predict_records(
    run_dir: Path,
    data: Path,
    out: Path | None,
    console: Console,
    places: Places = NOWHERE,
    *,
    skip_bad_rows: bool = False,
    hospital: Hospital = NEW_HOSPITAL,
) -> None:
    """Write class probabilities and uncertainty for new records as CSV, one row for each, in their order.

    Where the run recalibrated its posterior (and not mostly by noise), the probabilities are the
    recalibrated ones and the total uncertainty, in nats, is theirs; neither a map of averaged
    probabilities nor a point estimate tells aleatoric from epistemic, so these cells are then
    empty. Rows left out by `skip_bad_rows` keep their place, with empty cells. `hospital`: whose
    patients they are, where the run has a posterior over hospitals. Raises UserError if run or data
    cannot be read or do not fit, or `out` exists.
    """
    if out is not None and out.exists():
        raise UserError(f"--out {out} exists already: give another name, nothing is overwritten")
    found = _predict(run_dir, data, places, hospital, labelled=False, skip_bad_rows=skip_bad_rows)
    records, probabilities = found.records, found.probabilities
    classes = np.array(found.class_names or range(probabilities.shape[1]))
    units = {} if records.units is None else dict([records.units])
    predicted = classes[probabilities.argmax(axis=1)]
    table = pandas.DataFrame({records.numbered: records.names, **units, "predicted": predicted})
    table[[f"probability_{name}" for name in classes]] = probabilities
    table = table.assign(
        **{f"{name}_uncertainty": values for name, values in found.uncertainty.items()}
    )
    if found.threshold is not None:
        members = probabilities >= np.minimum(
            found.threshold, probabilities.max(axis=1, keepdims=True)
        )
        table["set"] = [" | ".join(map(str, classes[row])) for row in members]
    if bad := records.bad:
        table = table.astype({"predicted": object})
        table.iloc[list(bad), 1 + len(units) :] = np.nan
        shown = ", ".join(list(bad.values())[:MOST_NAMED]) + (
            ", ..." if len(bad) > MOST_NAMED else ""
        )
        _say(
            f"warning: {len(bad)} of {len(table)} rows have no prediction: {shown}", style="yellow"
        )
    if out is None:
        print(table.to_csv(index=False, float_format="%.6f"), end="")
        return
    try:
        table.to_csv(out, index=False, float_format="%.6f")
    except OSError as error:
        remedy = "" if out.parent.is_dir() else f"; create the folder {out.parent} first"
        raise UserError(
            f"--out {out} cannot be written: {error.strerror or error}{remedy}"
        ) from None
    console.print(
        f"{len(table) - len(bad)} predictions written to {out}", soft_wrap=True, markup=False
    )


def predicted_table(
    run_dir: Path, data: NewData, classes: pandas.Index, allowed_code: Allowed
) -> pandas.DataFrame:
    """Return probabilities, a column per class of these names, and `total_` and `epistemic_uncertainty` in nats.

    Recalibrated and undefined where those of `predict_records` are.
    """
    found = _predict(run_dir, data, (None, allowed_code), NEW_HOSPITAL, labelled=False)
    table = pandas.DataFrame(found.probabilities, columns=classes)
    return table.assign(
        **{f"{name}_uncertainty": found.uncertainty[name] for name in ("total", "epistemic")}
    )


def evaluate_records(
    run_dir: Path,
    data: Path,
    console: Console,
    places: Places = NOWHERE,
    *,
    as_json: bool,
    out: Path | None = None,
    hospital: Hospital = NEW_HOSPITAL,
) -> None:
    """Print the calibration of the stored posterior on labelled records, recalibrated where the run did so.

    `out`: the folder of the page, which must not exist; None: `evaluation-<data>-<time>` in the run
    directory. JSON goes without a page.
    """
    found = _predict(run_dir, data, places, hospital, labelled=True)
    labels, mapping, predictor = found.records.labels, found.mapping, found.predictor
    assert labels is not None
    name = (
        f"{'' if mapping is None else 'recalibrated '}{found.point}"
        if found.point
        else PREDICTORS[predictor]
    )
    statistics = from_batch(
        found.probabilities, labels, **(found.uncertainty if found.tells else {})
    )
    row = summarise(statistics, np.random.default_rng(0)).as_row()
    if area := exact_auroc(found.probabilities, labels):
        row |= {"auroc": area.value, "auroc_bounds": [area.value, area.value]}
    if not found.tells:
        row |= {"epistemic": None, "aleatoric": None}
    if as_json:
        print(json.dumps(json_values({"data": data.name, "predictor": predictor, **row})))
    else:
        console.print(_metric_table(row, name))
        out = (
            out or run_dir / f"evaluation-{site_name(data.stem)}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        )
        # A site that sends what its ledger pays for draws nothing, and need not have a library of
        # figures.
        from fl_dpbayes.report.evaluation_page import write_evaluation

        page = write_evaluation(out, _summary(found, data, predictor, statistics, row))
        console.print(f"report: {page}", soft_wrap=True, markup=False)


def _summary(
    found: "_Predicted", data: Path, predictor: str, statistics: CalibrationStatistics, row: dict
) -> Summary:
    """Write the records as a run's one held-out site, alone and pooled."""
    place = {"role": "held_out", "predictor": predictor, "samples": 1 if found.point else None}
    places = [place | {"site": "pooled:held_out"}, place | {"site": outside_text(data.stem)}]
    drawn = {"risk": found.probabilities.shape[1] == 2, "roc": roc_points(statistics)}
    drawn |= {"bins": [part.model_dump() for part in reliability_bins(statistics)]}
    return Summary.model_validate(
        {
            "scenario": found.scenario,
            "seed": None,
            "versions": {"fl-dpbayes": __version__},
            "adjacency": "",
            "data": str(data),
            "finished": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "class_names": found.class_names,
            "sites": [
                {"name": places[1]["site"], "role": "held_out", "n": row["n"], "test_n": row["n"]}
            ],
            "privacy": (),
            "calibration": [row | one for one in places],
            "reliability": [places[0] | drawn],
            "bytes": {},
            "seconds": {},
            "configurations_tried": None,
        }
    )


def _metric_table(row: dict[str, Any], name: str) -> Table:
    table = terminal_table(f"{name.capitalize()} on {row['n']} records")
    table.caption = "accuracy in %, calibration errors in percentage points"
    for column in ("metric", "value", "95% interval"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for metric in (METRICS[key] for key in SHOWN):
        write = points if metric.unit == "share" else decimal
        reference = (
            f" ({points(row['ece_if_calibrated'])} if calibrated)" if metric.key == "ece" else ""
        )
        unit = f", {metric.unit}" if metric.unit == "nats" else ""
        ends = interval(row["intervals"].get(metric.key), write)
        label = metric.name[0].upper() + metric.name[1:]
        table.add_row(f"{label}{unit}", f"{write(row[metric.key])}{reference}", ends)
    return table


@dataclass(frozen=True)
class _Predicted:
    """Predictions of a stored posterior after the map; `point` names it where it is one sample.

    `tells` says that uncertainties are told apart: neither one sample nor a map of averaged
    probabilities can do so. `threshold`: the least probability in sets with a guarantee, of which
    none is empty; None without them.
    """

    records: NewRecords
    probabilities: npt.NDArray[np.float64]
    uncertainty: dict[str, Any]
    tells: bool
    mapping: RecalibrationMap | None
    point: str
    class_names: tuple[str, ...]
    scenario: str
    predictor: str
    threshold: float | None


def read_run(run_dir: Path, allowed: Allowed = ()) -> tuple[StoredPosterior, Scenario]:
    """Read a run's posterior and its scenario.

    UserError if one is missing, damaged or not that of the other.
    """
    if not (run_dir / POSTERIOR_FILE).is_file():
        check_not_cut_off(run_dir)
    stored = load_posterior(run_dir / POSTERIOR_FILE, allowed)
    path = run_dir / SCENARIO_FILE
    if (
        not path.is_file()
        or digest(scenario := load_scenario(str(path))) != stored.metadata.scenario_hash
    ):
        raise UserError(
            f"{path} is missing or not the scenario of the posterior beside it: put back "
            "the run's own"
        )
    if stored.metadata.model != scenario.model:
        raise UserError(
            f"{run_dir / POSTERIOR_FILE} is of another model than {path}: put back the run's own"
        )
    return stored, scenario


def seen_by_model(
    stored: StoredPosterior, source: object, inputs: npt.NDArray, data_dir: Path | None = None
) -> tuple[nn.Module, npt.NDArray[np.float32]]:
    """Return a run's model, and what its trained layers see of records (N, *input_shape).

    `source`: of the run's.
    """
    model = stored.metadata.model
    backbones = backbone_folder(
        data_dir or (source.folder if isinstance(source, BuiltIn) else None)
    )
    module = build_model(model, stored.metadata.task, 0, backbones)
    if model.features is not None:
        inputs = feature_map(model.features, inputs.shape[1:], backbone_folder=backbones)(inputs)
    if model.frozen_body is not None:
        inputs = frozen_body(model, model.frozen_body, inputs.shape[1:], weights_folder=backbones)(
            inputs
        )
    # What overflows in float32 would make a released sum infinite or none, whatever the noise.
    return module, np.nan_to_num(inputs)


def _predict(
    run_dir: Path,
    data: NewData,
    places: Places,
    hospital: Hospital,
    *,
    labelled: bool,
    skip_bad_rows: bool = False,
) -> _Predicted:
    stored, scenario = read_run(run_dir, places[1])
    source, task, samples = scenario.data.source, stored.metadata.task, stored.samples
    records = read_new_records(data, task, source, labelled=labelled, skip_bad_rows=skip_bad_rows)
    (module, inputs), threshold = seen_by_model(stored, source, records.features, places[0]), None
    if found := hospital.of(run_dir, scenario, task):
        model, effect, threshold, _ = found
        good = with_intercept(np.delete(inputs, list(records.bad), axis=0))
        _say(
            f"{hospital}: {model.said_rate(effect, good)} among these "
            f"records{NO_SETS if threshold is None else ''}"
        )
        samples = model.samples(effect, model_shapes(stored.metadata.model, task))
    point = ""
    if warned := one_sample_warning(len(samples.weights), scenario.aggregation.point_name):
        point = f"point estimate ({scenario.aggregation.point_name or 'one sample'})"
        _say(f"warning: {sentence(warned)}", style="yellow")
    prediction = predict(module, samples.arrays, samples.weights, inputs)
    probabilities = prediction.probabilities
    mapping = None if found else _usable_map(stored.metadata.recalibration, run_dir)
    uncertainty = {name: getattr(prediction, name) for name in UNCERTAINTIES}
    if not (tells := mapping is None and not point):
        probabilities = probabilities if mapping is None else recalibrate(probabilities, mapping)
        uncertainty = {
            "total": entr(probabilities).sum(axis=1),
            "aleatoric": np.nan,
            "epistemic": np.nan,
        }
    names = getattr(source, "class_names", ()), scenario.name
    predictor = "hierarchical" if found else "posterior" if mapping is None else RECALIBRATED
    return _Predicted(
        records, probabilities, uncertainty, tells, mapping, point, *names, predictor, threshold
    )


def _usable_map(mapping: RecalibrationMap | None, run_dir: Path) -> RecalibrationMap | None:
    """Say whether probabilities are recalibrated and how.

    A map that its run found to be mostly noise is left out.
    """
    if mapping is None:
        return None
    # A posterior may be used without the records of its run.
    if (run_dir / SUMMARY_FILE).is_file() and (noise := read_summary(run_dir).recalibration_noise):
        _say(f"warning: {noise}. The probabilities here are the posterior's own.", style="yellow")
        return None
    said = (
        f"probabilities are recalibrated by {describe(mapping)}, the average over the "
        "training sites"
    )
    _say(f"{said}; their uncertainty has no aleatoric and epistemic part")
    return mapping


def _say(text: str, style: str = "") -> None:
    # On the error stream: what goes to the other may be CSV or JSON for a program.
    Console(stderr=True).print(text, style=style, markup=False, highlight=False)
