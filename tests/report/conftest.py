import io
import itertools
import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
from rich.console import Console

from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.figures import draw_figures
from fl_dpbayes.report.page import write_report
from fl_dpbayes.report.run_files import (
    CALIBRATION_COLUMNS,
    PRIVACY_COLUMNS,
    ROUND_COLUMNS,
    calibration_csv_row,
    read_epsilon_curves,
    read_summary,
    write_csv,
    write_summary,
)
from fl_dpbayes.report.study.results import read_study

MEASURED_PLACES = [("pooled:held_out", "held_out"), ("island", "held_out"), ("university", "held_out")]
TRAIN = ("north-clinic", "harbour-hospital", "st-anne", "valley")


def calibration_row(site, role, predictor, n, rms):
    accuracy, nll = 0.953 - 0.6 * rms, 0.17 + 2.1 * rms
    half = 2 * math.sqrt(accuracy * (1 - accuracy) / n)
    return {
        "site": site, "role": role, "predictor": predictor, "n": n, "accuracy": accuracy, "nll": nll, "brier": 0.131,
        "ece": rms + 0.01, "ece_if_calibrated": 0.8 / math.sqrt(n), "ece_if_calibrated_high": 1.1 / math.sqrt(n),
        "rms_debiased": rms, "mce": 0.2, "ace": 0.05, "sce": 0.04, "auroc": 0.97, "auroc_bounds": [0.968, 0.972],
        "epistemic": 0.03, "aleatoric": 0.2,
        "intervals": {
            "rms_debiased": [rms - 0.009, rms + 0.009], "accuracy": [accuracy - half, min(1.0, accuracy + half)],
            "nll": [nll - half, nll + half],
        },
    }  # fmt: skip


def reliability_row(site, role, predictor, overconfidence):
    generator = np.random.default_rng(3)
    counts = [0, 0, 0, 0, 0, 3, 4, 6, 9, 13, 20, 32, 52, 98, 213]
    bins = []
    for index, n in enumerate(counts):
        low, high = index / 15, (index + 1) / 15
        middle = (low + high) / 2
        bins.append(
            {
                "low": low, "high": high, "n": n,
                "confidence": middle if n else None,
                "accuracy": min(1.0, max(0.0, middle - overconfidence + generator.normal(0, 0.02))) if n else None,
                "band_low": max(0.0, middle - 0.85 / math.sqrt(n)) if n else None,
                "band_high": min(1.0, middle + 0.85 / math.sqrt(n)) if n else None,
            }
        )  # fmt: skip
    return {"site": site, "role": role, "predictor": predictor, "bins": bins}


def make_summary():
    roles = {"train": list(TRAIN), "held_out": ["island", "university"], "shifted": ["new-scanner"]}
    errors = {"train": (0.041, 0.015), "held_out": (0.064, 0.021), "shifted": (0.122, 0.083)}
    sites, calibration, reliability = [], [], []
    for role, names in roles.items():
        for place in [f"pooled:{role}", *names]:
            pooled = place.startswith("pooled:")
            for predictor, rms in zip(("last", "posterior"), errors[role], strict=True):
                shift = 0 if pooled else 0.004 * len(place) - 0.03
                n = 450 if pooled else 150
                calibration.append(calibration_row(place, role, predictor, n, max(0.01, rms + shift)))
                reliability.append(reliability_row(place, role, predictor, rms))
        for name in names:
            shift = "detector_noise, severity 3" if role == "shifted" else ""
            sites.append({"name": name, "role": role, "n": 1234, "unit": "patient", "shift": shift, "test_n": 150})
    privacy = [
        {
            "site": name, "delta": 1e-4, "epsilon": 1.953 - 0.11 * index, "epsilon_method": "pld",
            "mu": 0.6123 - 0.03 * index, "mu_kind": "clt", "steps": 200, "rounds": 5, "budget": 2.0,
            "temperature": 1.37, "temperature_range": [0.91, 1.86], "unit": "patient", "status": "OK",
        }
        for index, name in enumerate(TRAIN)
    ]  # fmt: skip
    return {
        "scenario": "quickstart", "seed": 7, "versions": {"fl_dpbayes": "0.1.0", "torch": "2.15.0"},
        "adjacency": "add_or_remove_one", "seeded": False, "aggregation": "mixture", "sites": sites,
        "privacy": privacy, "calibration": calibration, "reliability": reliability,
        "releases": [
            {"item": "posterior samples and their weights", "how": "paid in ledger"},
            {"item": "number of patients", "how": "public by declaration"},
            {"item": "records, gradients, losses", "how": "not sent"},
        ],
        "bytes": {"up": [120_000, 120_000, 240_000, 240_000, 240_000], "down": [26_000] * 5},
        "seconds": {"partition": 0.4, "train": 71.2, "evaluate": 3.1}, "configurations_tried": 1,
        "warnings": [], "heterogeneity": 0.213,
    }  # fmt: skip


def decision_curve(model):
    return [
        {"threshold": t, "model": model - t / 10, "interval": [model - t / 10 - 0.05, model - t / 10 + 0.05],
         "all": 0.4 - t, "none": 0.0}
        for t in (0.25, 0.5, 0.75)
    ]  # fmt: skip


def make_measured_summary():
    summary = make_summary()
    for row in summary["calibration"]:
        row |= {"calibration_intercept": 0.214, "calibration_slope": 0.81, "rms_true": 0.028, "ece_true": 0.019}
        row |= {"ece_10": 0.0111, "ece_binary": 0.0222, "aurc": 0.0333, "accuracy_at_coverage": {"0.8": 0.9444}}
        row["net_benefit"] = decision_curve(0.3 if row["predictor"] == "posterior" else 0.2)
        row["intervals"] |= {"calibration_intercept": [-0.02, 0.45], "calibration_slope": [0.7, 0.93]}
    summary["subgroups"] = [
        calibration_row(site, role, predictor, n, rms) | {"attribute": "sex", "value": value}
        for site, role in MEASURED_PLACES
        for value, n, rms in (("female", 61, 0.111), ("male", 89, 0.022))
        for predictor in ("last", "posterior")
    ]
    summary["shift_detection"] = [
        {"site": site, "predictor": "posterior", "measure": measure, "auroc": area,
         "low": area - 0.01, "high": area + 0.01,
         "interval": [area - 0.1, area + 0.1], "n_reference": 777, "n": 150}
        for site in ("pooled:shifted", "new-scanner")
        for measure, area in (("epistemic", 0.83), ("total", 0.41))
    ]  # fmt: skip
    summary["conformal"] = [
        {"site": site, "role": role, "predictor": predictor, "level": 0.9, "weights": weights,
         "calibrated_on": "training records", "coverage": coverage, "interval": [coverage - 0.02, coverage + 0.02],
         "size": 1.257, "n": 150, "n_calibration": 777}
        for site, role in MEASURED_PLACES
        for predictor in ("last", "posterior")
        for weights, coverage in (("none", 0.85), ("label-shift", 0.89), ("label-shift-estimated", 0.95))
    ]  # fmt: skip
    return summary


@pytest.fixture
def summary():
    return make_summary()


def make_privacy_rounds(summary):
    return [
        {
            "site": row["site"], "round": number, "steps": 40 * number,
            "epsilon": row["epsilon"] * math.sqrt(number / 5), "epsilon_method": "pld", "delta": 1e-4,
            "mu": row["mu"] * math.sqrt(number / 5), "mu_kind": "clt", "adjacency": "add_or_remove_one",
            "noise_multiplier_first": 1.1, "noise_multiplier_last": 1.4, "temperature": 1.37, "status": "OK",
            "budget": 2.0,
        }
        for row in summary["privacy"]
        for number in range(1, 6)
    ]  # fmt: skip


@pytest.fixture
def privacy_rounds(summary):
    return make_privacy_rounds(summary)


def write_run_directory(run_dir, summary, rounds):
    write_summary(summary, run_dir)
    write_csv(run_dir / "privacy.csv", rounds, PRIVACY_COLUMNS)
    write_csv(
        run_dir / "calibration.csv", map(calibration_csv_row, parse_summary(summary).calibration), CALIBRATION_COLUMNS
    )
    rows = [{"round": n, "seconds": 14.2, "sites_asked": 4, "sites_ok": 4, "bytes_up": 240_000} for n in (1, 2)]
    write_csv(run_dir / "rounds.csv", rows, ROUND_COLUMNS)
    return run_dir


@pytest.fixture(scope="session")
def figures_of():
    """The function that draws the figures of a run directory, and returns them by name."""

    def figures(folder):
        drawn = draw_figures(folder, read_summary(folder), read_epsilon_curves(folder))
        return {figure.name: figure for made in drawn.values() for figure in made}

    return figures


@pytest.fixture(scope="session")
def shown():
    """The function that prints a table to a terminal of a width and returns the text."""

    def text(table, width=100):
        output = io.StringIO()
        Console(file=output, width=width, color_system=None).print(table)
        return output.getvalue()

    return text


@pytest.fixture
def write_run(tmp_path, privacy_rounds):
    """Write a run directory that holds a summary, as a run does."""
    return lambda summary, rounds=privacy_rounds: write_run_directory(tmp_path / "run", summary, rounds)


@pytest.fixture(scope="session")
def reported(tmp_path_factory):
    """The report of the summary as it stands in the fixture of that name; drawn once, to be read only."""
    summary = make_summary()
    return write_report(write_run_directory(tmp_path_factory.mktemp("run"), summary, make_privacy_rounds(summary)))


LAST, POSTERIOR = 0.064, 0.031
SEVERITIES, KINDS = (1, 2, 3, 4, 5), ("gamma", "detector_noise", "rotation")


def study_error(predictor: str, alpha: float, seed: int, noise: float, severity: int = 0, slope: float = 0.02) -> float:
    """A calibration error whose mean over seeds 1, 2, 3 and over alphas is LAST or POSTERIOR at severity 0."""
    base = LAST if predictor == "last" else POSTERIOR
    return base + 0.01 * (1 if alpha < 1 else -1) + noise * (seed - 2) + slope * severity


def write_study_folder(
    folder: Path,
    *,
    seeds: tuple[int, ...] = (1, 2, 3),
    alphas: tuple[float, ...] = (100.0, 0.1),
    shifts: bool = False,
    further: bool = False,
    noise: float = 0.004,
    last_noise: float | None = None,
    question: str = "May I trust it?",
    site: str = "away",
    where: str = "pooled:held_out",
    extra_axes: dict[str, list] | None = None,
) -> Path:
    """Write a study's files: `noise` is how far apart seeds are, `last_noise` the same for the last iterate; `further`
    adds subgroups, conformal sets, shift detection and known truth, `extra_axes` axes that change nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    extra = extra_axes or {}
    axes = {"partition.alpha": list(alphas), **extra, "seed": list(seeds)}
    rows, subgroups, conformal, detection = [], [], [], []
    combinations = itertools.product(alphas, *extra.values(), seeds)
    for number, (alpha, *labels, seed) in enumerate(combinations):
        first = {"cell": f"c{number}", "partition.alpha": alpha, **dict(zip(extra, labels, strict=True)), "seed": seed}
        run = {
            "epsilon": 3.9512, "heterogeneity": (0.6 if alpha < 1 else 0.05) + 0.01 * seed, "seconds": 20.0 + seed,
            "warnings": 0,
        }  # fmt: skip
        places = [("pooled:held_out", "held_out", None, None), (site, "held_out", None, None)]
        places += [("north", "train", None, None), ("south", "train", None, None)]
        if shifts:
            places += [(f"{kind}-{severity}", "shifted", kind, severity) for kind in KINDS for severity in SEVERITIES]
        for name, role, shift, severity in places:
            place = first | {"site": name, "role": role, "shift": shift, "severity": severity}
            for predictor in ("last", "posterior"):
                spread = last_noise if last_noise is not None and predictor == "last" else noise
                slope = 0.02 if shift == "rotation" else 0.012 if shift == "gamma" else 0.001
                rms = study_error(predictor, alpha, seed, spread, severity or 0, slope)
                row = {
                    "predictor": predictor, "n": 400, "samples": 1 if predictor == "last" else 20,
                    "accuracy": 0.95 - rms, "nll": 0.2 + 2 * rms, "ece": rms + 0.01, "ece_if_calibrated": 0.012,
                    "rms_debiased": rms, "epistemic": 0.01 + 0.005 * (severity or 0),
                }  # fmt: skip
                if further:
                    row |= {"rms_true": 0.9 * rms, "ece_true": 0.8 * rms}
                ends = {"rms_debiased_low": rms - 0.01, "rms_debiased_high": rms + 0.01}
                rows.append(place | row | ends | run)
                if further and name == "pooled:held_out":
                    for attribute, value in (("sex", "female"), ("sex", "male"), ("age", "under 55")):
                        part = {"attribute": attribute, "value": value, "rms_debiased": rms + 0.02 * (value == "male")}
                        subgroups.append(place | {"predictor": predictor, "n": 200} | part)
            if further and role != "train":
                for weights in ("none", "label-shift"):
                    conformal.append(
                        place | {"predictor": "posterior", "n": 400, "level": 0.9, "weights": weights,
                                 "coverage": 0.91 - 0.03 * (severity or 0), "size": 1.2 + 0.1 * (severity or 0)}
                    )  # fmt: skip
                for measure in ("epistemic", "total"):
                    detection.append(
                        place | {"predictor": "posterior", "n": 400, "measure": measure,
                                 "auroc": 0.5 + 0.06 * (severity or 0) + 0.01 * (seed - 2),
                                 "low": 0.49 + 0.06 * (severity or 0), "high": 0.51 + 0.06 * (severity or 0)}
                    )  # fmt: skip
    tables = {"results": rows, "subgroups": subgroups, "conformal": conformal, "shift_detection": detection}
    for name, table in tables.items():
        if table:
            pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
    cells = len(alphas) * len(seeds) * math.prod(len(values) for values in extra.values())
    if shifts:
        axes |= {"shift.kind": list(KINDS), "shift.severity": list(SEVERITIES)}
    record = {
        "study": "made-up", "question": question, "axes": axes, "compare": ["predictor"],
        "metrics": ["rms_debiased", "ece", "nll", "accuracy"], "where": where,
        "cells": {"all": cells, "finished": cells, "failed": 0}, "seconds": 123.0, "versions": {"fl-dpbayes": "0.1.0"},
        "failed": [],
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(record))
    settings = {
        "study": {"shifted_copy_of": site}, "privacy": {"epsilon": 4.0, "delta": 1e-4}, "data": {"source": "digits"},
    }  # fmt: skip
    (folder / "study.toml").write_text(tomli_w.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def write_study():
    """The function that writes the folder of a study with made-up numbers, of which every mean is known."""
    return write_study_folder


@pytest.fixture
def study_folder(tmp_path):
    """Write a study; `edit` changes its table of results, `record` what `study.json` holds."""

    def write(edit=None, record=None, **options):
        folder = write_study_folder(tmp_path / "study", **options)
        if edit is not None:
            table = pd.read_csv(folder / "results.csv", keep_default_na=False, na_values=[""])
            changed = edit(table)
            (table if changed is None else changed).to_csv(folder / "results.csv", index=False)
        content = json.loads((folder / "study.json").read_text()) | (record or {})
        (folder / "study.json").write_text(json.dumps(content))
        return folder

    return write


@pytest.fixture
def study(study_folder):
    """Write a study and read it."""
    return lambda edit=None, record=None, **options: read_study(study_folder(edit, record, **options))


@pytest.fixture
def texts():
    """The function that returns the texts of an SVG."""
    return lambda svg: [node.text for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.fixture
def measured_summary():
    """A summary of two classes with subgroups, prediction sets, shift detection and known truth."""
    return make_measured_summary()


@pytest.fixture(scope="session")
def measured(tmp_path_factory):
    """The report of `measured_summary`; drawn once, to be read only."""
    summary = make_measured_summary()
    return write_report(write_run_directory(tmp_path_factory.mktemp("measured"), summary, make_privacy_rounds(summary)))
