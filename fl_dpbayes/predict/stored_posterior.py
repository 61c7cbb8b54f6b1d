"""The work behind `predict` and `evaluate`: a stored posterior on new records, on this machine."""

import json
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas
from rich.console import Console

from fl_dpbayes.config import outside_text, site_name
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import json_values
from fl_dpbayes.predict.evaluation import evaluate_prediction
from fl_dpbayes.predict.finished_run import read_run
from fl_dpbayes.predict.hospital_posterior import NEW_HOSPITAL, Hospital
from fl_dpbayes.predict.new_records import NewData, NewRecords, read_new_records
from fl_dpbayes.predict.prediction import (
    WARNING,
    Prediction,
    predict_new_records,
    show_notes,
)

MOST_ROWS_NAMED = 10


def predict_records(
    run_dir: Path,
    data: Path,
    out: Path | None,
    console: Console,
    *,
    data_dir: Path | None = None,
    allowed_code: Collection[str] = (),
    skip_bad_rows: bool = False,
    hospital: Hospital = NEW_HOSPITAL,
) -> None:
    """Write class probabilities and uncertainty of new records as CSV, one row for each, in order.

    Where the run recalibrated its posterior (and not mostly by noise), the probabilities are the
    recalibrated ones and the total uncertainty, in nats, is theirs; neither a map of averaged
    probabilities nor a point estimate tells aleatoric from epistemic, so these cells are then
    empty.

    Args:
        run_dir: The run's folder.
        data: The records: .csv, .parquet, .npz, or a folder of images.
        out: Where to write the CSV; None: to the standard output.
        console: Told how many predictions were written.
        data_dir: Where backbones lie; None: the source's own folder, or the default one.
        allowed_code: Factories of the model that may be imported.
        skip_bad_rows: Give bad rows of a table empty cells; otherwise they are refused.
        hospital: Whose patients they are, where the run has a posterior over hospitals.

    Raises:
        UserError: If run or data cannot be read or do not fit, or `out` exists.
    """
    if out is not None and out.exists():
        raise UserError(f"--out {out} exists already: give another name, nothing is overwritten")
    run = read_run(run_dir, allowed_code, data_dir)
    records = read_new_records(
        data, run.task, run.source, labelled=False, skip_bad_rows=skip_bad_rows
    )
    prediction = predict_new_records(run, records, hospital)
    table = prediction_table(prediction, records, class_names=run.class_names)
    show_notes(prediction.posterior.notes)
    if records.bad:
        show_notes([_bad_rows_note(records)])
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
    predicted = len(table) - len(records.bad)
    console.print(f"{predicted} predictions written to {out}", soft_wrap=True, markup=False)


def prediction_table(
    prediction: Prediction, records: NewRecords, class_names: tuple[str, ...]
) -> pandas.DataFrame:
    """Tabulate predictions as `predict` writes them.

    Args:
        prediction: Predictions of N records.
        records: The records; bad ones get empty cells.
        class_names: In the order of the classes; empty where numbers name them.

    Returns:
        N rows: the record's name, its privacy unit if known, the most probable class, all
        probabilities, uncertainties in nats, and a prediction set where sets have a guarantee.
    """
    probabilities = prediction.probabilities
    classes = np.array(class_names or range(probabilities.shape[1]))
    table = pandas.DataFrame({records.numbered: records.names})
    if records.units is not None:
        table[records.units.name] = records.units.to_numpy()
    identifying_columns = len(table.columns)
    table["predicted"] = classes[probabilities.argmax(axis=1)]
    table[[f"probability_{name}" for name in classes]] = probabilities
    table["total_uncertainty"] = prediction.total
    table["aleatoric_uncertainty"] = prediction.aleatoric
    table["epistemic_uncertainty"] = prediction.epistemic
    set_threshold = prediction.posterior.set_threshold
    if set_threshold is not None:
        # No set is empty: the most probable class is in each.
        largest = probabilities.max(axis=1, keepdims=True)
        members = probabilities >= np.minimum(set_threshold, largest)
        table["set"] = [" | ".join(map(str, classes[row])) for row in members]
    if records.bad:
        table = table.astype({"predicted": object})
        table.iloc[list(records.bad), identifying_columns:] = np.nan
    return table


def predicted_table(
    run_dir: Path, data: NewData, classes: pandas.Index, allowed_code: Collection[str]
) -> pandas.DataFrame:
    """Predict new records for someone who writes Python.

    Args:
        run_dir: The run's folder.
        data: N records, as `read_new_records` takes them.
        classes: The columns of the probabilities.
        allowed_code: Factories of the model that may be imported.

    Returns:
        N rows: probabilities, then `total_uncertainty` and `epistemic_uncertainty` in nats,
        recalibrated and undefined where those of `predict_records` are.

    Raises:
        UserError: If run or data cannot be read or do not fit.
    """
    run = read_run(run_dir, allowed_code)
    records = read_new_records(data, run.task, run.source, labelled=False)
    prediction = predict_new_records(run, records, NEW_HOSPITAL)
    show_notes(prediction.posterior.notes)
    table = pandas.DataFrame(prediction.probabilities, columns=classes)
    return table.assign(
        total_uncertainty=prediction.total, epistemic_uncertainty=prediction.epistemic
    )


def evaluate_records(
    run_dir: Path,
    data: Path,
    console: Console,
    *,
    data_dir: Path | None = None,
    allowed_code: Collection[str] = (),
    as_json: bool,
    out: Path | None = None,
    hospital: Hospital = NEW_HOSPITAL,
) -> None:
    """Print the calibration of a stored posterior on labelled records, and write a page of it.

    Args:
        run_dir: The run's folder; probabilities are recalibrated where the run did so.
        data: The records with labels: .csv, .parquet, .npz, or a folder per class.
        console: Where the table is printed.
        data_dir: Where backbones lie; None: the source's own folder, or the default one.
        allowed_code: Factories of the model that may be imported.
        as_json: Print JSON instead, without a page.
        out: Folder of the page, which must not exist; None: `evaluation-<data>-<time>` in the run.
        hospital: Whose patients they are, where the run has a posterior over hospitals.

    Raises:
        UserError: If run or data cannot be read or do not fit, or `out` exists.
    """
    run = read_run(run_dir, allowed_code, data_dir)
    records = read_new_records(data, run.task, run.source, labelled=True)
    assert records.labels is not None
    prediction = predict_new_records(run, records, hospital)
    show_notes(prediction.posterior.notes)
    evaluation = evaluate_prediction(prediction, records.labels)
    if as_json:
        names = {"data": data.name, "predictor": prediction.posterior.predictor}
        print(json.dumps(json_values({**names, **evaluation.row})))
        return
    console.print(evaluation.table())
    if out is None:
        out = run_dir / f"evaluation-{site_name(data.stem)}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    # Matplotlib is imported only by who draws: a site need not have it for its own commands.
    from fl_dpbayes.report.evaluation_page import write_evaluation

    summary = evaluation.summary(
        scenario=run.scenario.name,
        class_names=run.class_names,
        data=str(data),
        name=outside_text(data.stem),
    )
    page = write_evaluation(out, summary)
    console.print(f"report: {page}", soft_wrap=True, markup=False)


def _bad_rows_note(records: NewRecords) -> str:
    rows = list(records.bad.values())
    listed = ", ".join(rows[:MOST_ROWS_NAMED])
    if len(rows) > MOST_ROWS_NAMED:
        listed += ", ..."
    return f"{WARNING}{len(rows)} of {len(records.names)} rows have no prediction: {listed}"
