"""Run directories and studies with made-up numbers, of which every mean is known."""

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

from fl_dpbayes.report.figures import draw_figures
from fl_dpbayes.report.page import write_report
from fl_dpbayes.report.run_files import (
    PRIVACY_COLUMNS,
    read_epsilon_curves,
    read_summary,
    write_csv,
    write_summary,
)
from fl_dpbayes.report.study.results import read_study
from fl_dpbayes.report.summary import parse_summary

HELD_OUT = [("pooled:held_out", "held_out"), ("island", "held_out"), ("university", "held_out")]
TRAIN = ("north-clinic", "harbour-hospital", "st-anne", "valley")


def calibration_row(site, role, predictor, n, rms):
    accuracy, nll = 0.953 - 0.6 * rms, 0.17 + 2.1 * rms
    half = 2 * math.sqrt(accuracy * (1 - accuracy) / n)
    return {
        "site": site,
        "role": role,
        "predictor": predictor,
        "n": n,
        "accuracy": accuracy,
        "nll": nll,
        "brier": 0.131,
        "ece": rms + 0.01,
        "ece_if_calibrated": 0.8 / math.sqrt(n),
        "ece_if_calibrated_high": 1.1 / math.sqrt(n),
        "rms_debiased": rms,
        "mce": 0.2,
        "ace": 0.05,
        "sce": 0.04,
        "auroc": 0.97,
        "auroc_bounds": [0.968, 0.972],
        "epistemic": 0.03,
        "aleatoric": 0.2,
        "intervals": {
            "rms_debiased": [rms - 0.009, rms + 0.009],
            "accuracy": [accuracy - half, min(1.0, accuracy + half)],
            "nll": [nll - half, nll + half],
        },
    }


def reliability_row(site, role, predictor, overconfidence):
    generator, bins = np.random.default_rng(3), []
    for index, n in enumerate([0, 0, 0, 0, 0, 3, 4, 6, 9, 13, 20, 32, 52, 98, 213]):
        low, high = index / 15, (index + 1) / 15
        part, middle = {"low": low, "high": high, "n": n}, (low + high) / 2
        if n:
            accuracy = min(1.0, max(0.0, middle - overconfidence + generator.normal(0, 0.02)))
            half = 0.85 / math.sqrt(n)
            band = {"band_low": max(0.0, middle - half), "band_high": min(1.0, middle + half)}
            part |= {"confidence": middle, "accuracy": accuracy, **band}
        bins.append(part)
    return {"site": site, "role": role, "predictor": predictor, "bins": bins}


def make_summary():
    roles = {"train": list(TRAIN), "held_out": ["island", "university"], "shifted": ["new-scanner"]}
    errors = {"train": (0.041, 0.015), "held_out": (0.064, 0.021), "shifted": (0.122, 0.083)}
    sites, calibration, reliability = [], [], []
    for role, names in roles.items():
        for place in [f"pooled:{role}", *names]:
            pooled = place.startswith("pooled:")
            shift, n = (0, 450) if pooled else (0.004 * len(place) - 0.03, 150)
            for predictor, rms in zip(("last", "posterior"), errors[role], strict=True):
                calibration.append(
                    calibration_row(place, role, predictor, n, max(0.01, rms + shift))
                )
                reliability.append(reliability_row(place, role, predictor, rms))
        shift = "detector_noise, severity 3" if role == "shifted" else ""
        row = {"role": role, "n": 1234, "unit": "patient", "shift": shift, "test_n": 150}
        sites += [{"name": name, **row} for name in names]
    privacy = [
        {
            "site": name,
            "delta": 1e-4,
            "epsilon": 1.953 - 0.11 * index,
            "epsilon_method": "pld",
            "mu": 0.6123 - 0.03 * index,
            "mu_kind": "clt",
            "steps": 200,
            "rounds": 5,
            "budget": 2.0,
            "temperature": 1.37,
            "temperature_range": [0.91, 1.86],
            "unit": "patient",
            "status": "OK",
        }
        for index, name in enumerate(TRAIN)
    ]
    return {
        "scenario": "digits",
        "seed": 7,
        "versions": {"fl_dpbayes": "0.1.0", "torch": "2.15.0"},
        "adjacency": "add_or_remove_one",
        "seeded": False,
        "aggregation": "mixture",
        "sites": sites,
        "privacy": privacy,
        "calibration": calibration,
        "reliability": reliability,
        "releases": [
            {"item": "posterior samples and their weights", "how": "paid in ledger"},
            {"item": "number of patients", "how": "public by declaration"},
            {"item": "records, gradients, losses", "how": "not sent"},
        ],
        "bytes": {"up": [120_000, 120_000, 240_000, 240_000, 240_000], "down": [26_000] * 5},
        "seconds": {"partition": 0.4, "train": 71.2, "evaluate": 3.1},
        "configurations_tried": 1,
        "warnings": [],
        "heterogeneity": 0.213,
    }


def make_measured_summary():
    summary = make_summary()
    for row in summary["calibration"]:
        row |= {
            "calibration_intercept": 0.214,
            "calibration_slope": 0.81,
            "rms_true": 0.028,
            "ece_true": 0.019,
        }
        row |= {"ece_10": 0.0111, "ece_binary": 0.0222, "aurc": 0.0333}
        models = [
            (t, (0.3 if row["predictor"] == "posterior" else 0.2) - t / 10)
            for t in (0.25, 0.5, 0.75)
        ]
        row["net_benefit"] = [
            {
                "threshold": t,
                "model": model,
                "interval": [model - 0.05, model + 0.05],
                "all": 0.4 - t,
                "none": 0.0,
            }
            for t, model in models
        ]
        row["intervals"] |= {
            "calibration_intercept": [-0.02, 0.45],
            "calibration_slope": [0.7, 0.93],
        }
    summary["subgroups"] = [
        calibration_row(site, role, predictor, n, rms) | {"attribute": "sex", "value": value}
        for site, role in HELD_OUT
        for value, n, rms in (("female", 61, 0.111), ("male", 89, 0.022))
        for predictor in ("last", "posterior")
    ]
    summary["shift_detection"] = [
        {
            "site": site,
            "predictor": "posterior",
            "measure": measure,
            "auroc": area,
            "low": area - 0.01,
            "high": area + 0.01,
            "interval": [area - 0.1, area + 0.1],
            "n_reference": 777,
            "n": 150,
        }
        for site in ("pooled:shifted", "new-scanner")
        for measure, area in (("epistemic", 0.83), ("total", 0.41))
    ]
    summary["conformal"] = [
        {
            "site": site,
            "role": role,
            "predictor": predictor,
            "level": 0.9,
            "weights": weights,
            "calibrated_on": "training records",
            "coverage": coverage,
            "interval": [coverage - 0.02, coverage + 0.02],
            "size": 1.257,
            "n": 150,
            "n_calibration": 777,
        }
        for site, role in HELD_OUT
        for predictor in ("last", "posterior")
        for weights, coverage in (
            ("none", 0.85),
            ("label-shift", 0.89),
            ("label-shift-estimated", 0.95),
        )
    ]
    return summary


def make_privacy_rounds(summary):
    return [
        {
            "site": row["site"],
            "round": number,
            "steps": 40 * number,
            "epsilon_method": "pld",
            "delta": 1e-4,
            "epsilon": row["epsilon"] * math.sqrt(number / 5),
            "budget": 2.0,
            "status": "OK",
        }
        for row in summary["privacy"]
        for number in range(1, 6)
    ]


@pytest.fixture
def summary():
    return make_summary()


@pytest.fixture
def measured_summary():
    """A summary of two classes with subgroups, prediction sets, shift detection and known truth."""
    return make_measured_summary()


@pytest.fixture
def privacy_rounds(summary):
    return make_privacy_rounds(summary)


def write_run_directory(run_dir, summary, rounds):
    write_summary(summary, run_dir)
    write_csv(run_dir / "privacy.csv", rounds, PRIVACY_COLUMNS)
    return run_dir


@pytest.fixture
def write_run(tmp_path, privacy_rounds):
    """Write a run directory that holds a summary, as a run does."""
    return lambda summary, rounds=privacy_rounds: write_run_directory(
        tmp_path / "run", summary, rounds
    )


@pytest.fixture(scope="session")
def figures_of():
    """The function that draws the figures of a run directory, and returns them by name."""

    def figures(folder):
        drawn = draw_figures(folder, read_summary(folder), read_epsilon_curves(folder))
        return {figure.name: figure for made in drawn.values() for figure in made}

    return figures


@pytest.fixture(scope="session")
def shown():
    """The function that prints a summary's table to a terminal of a width and returns the text."""

    def text(build, summary, width=100):
        output = io.StringIO()
        Console(file=output, width=width, color_system=None).print(
            build(parse_summary(summary), width)
        )
        return output.getvalue()

    return text


@pytest.fixture(scope="session")
def texts():
    """The function that returns the texts of an SVG."""
    return lambda svg: [
        node.text for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]


def _reported(folder, summary):
    return write_report(write_run_directory(folder, summary, make_privacy_rounds(summary)))


@pytest.fixture(scope="session")
def reported(tmp_path_factory):
    """The report of `summary`; drawn once, to be read only."""
    return _reported(tmp_path_factory.mktemp("run"), make_summary())


@pytest.fixture(scope="session")
def measured(tmp_path_factory):
    """The report of `measured_summary`; drawn once, to be read only."""
    return _reported(tmp_path_factory.mktemp("measured"), make_measured_summary())


LAST, POSTERIOR = 0.064, 0.031
SLOPES = {"gamma": 0.012, "detector_noise": 0.001, "rotation": 0.02}
SEVERITIES = (1, 2, 3, 4, 5)


def write_study_folder(
    folder: Path,
    record=None,
    *,
    seeds=(1, 2, 3),
    alphas=(100.0, 0.1),
    shifts=False,
    further=False,
    noise=0.004,
    last_noise=None,
    site="away",
    extra_axes=None,
):
    """Write a study's files.

    The mean error over seeds 1, 2, 3 and alphas is LAST or POSTERIOR at severity 0.

    `record`: changes of `study.json`. `noise`: how far apart seeds are, `last_noise` for the last
    iterate. `further`: with subgroups, conformal sets and shift detection. `extra_axes`: axes that
    change nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    axes = {"partition.alpha": list(alphas), **(extra_axes or {}), "seed": list(seeds)}
    rows, subgroups, conformal, detection = [], [], [], []
    cells = list(itertools.product(*axes.values()))
    for number, values in enumerate(cells):
        first = {"cell": f"c{number}", **dict(zip(axes, values, strict=True))}
        alpha, seed = first["partition.alpha"], first["seed"]
        heterogeneity = (0.6 if alpha < 1 else 0.05) + 0.01 * seed
        run = {
            "epsilon": 3.9512,
            "heterogeneity": heterogeneity,
            "seconds": 20.0 + seed,
            "warnings": 0,
        }
        places = [("pooled:held_out", "held_out", None, 0), (site, "held_out", None, 0)]
        places += [("north", "train", None, 0), ("south", "train", None, 0)]
        for kind, severity in itertools.product(SLOPES, SEVERITIES) if shifts else ():
            places.append((f"{kind}-{severity}", "shifted", kind, severity))
        for name, role, shift, at in places:
            place = first | {"site": name, "role": role, "shift": shift, "severity": at or None}
            for predictor in ("last", "posterior"):
                last = predictor == "last"
                spread = last_noise if last and last_noise is not None else noise
                base = (LAST if last else POSTERIOR) + 0.01 * (1 if alpha < 1 else -1)
                rms = base + spread * (seed - 2) + SLOPES.get(shift, 0) * at
                row = {
                    "predictor": predictor,
                    "n": 400,
                    "samples": 1 if last else 20,
                    "accuracy": 0.95 - rms,
                    "nll": 0.2 + 2 * rms,
                    "ece": rms + 0.01,
                    "ece_if_calibrated": 0.012,
                    "rms_debiased": rms,
                }
                rows.append(
                    place
                    | row
                    | {"rms_debiased_low": rms - 0.01, "rms_debiased_high": rms + 0.01}
                    | run
                )
                for attribute, value in (("sex", "female"), ("sex", "male"), ("age", "under 55")):
                    part = {
                        "attribute": attribute,
                        "value": value,
                        "rms_debiased": rms + 0.02 * (value == "male"),
                    }
                    if further and name == "pooled:held_out":
                        subgroups.append(place | {"predictor": predictor, "n": 200} | part)
            place |= {"predictor": "posterior", "n": 400}
            for weights in ("none", "label-shift") if further and role != "train" else ():
                sets = {
                    "level": 0.9,
                    "weights": weights,
                    "coverage": 0.91 - 0.03 * at,
                    "size": 1.2 + 0.1 * at,
                }
                conformal.append(place | sets)
            for measure in ("epistemic", "total") if further and role != "train" else ():
                area = 0.5 + 0.06 * at
                ends = {"auroc": area + 0.01 * (seed - 2), "low": area - 0.01, "high": area + 0.01}
                detection.append(place | {"measure": measure} | ends)
    tables = {
        "results": rows,
        "subgroups": subgroups,
        "conformal": conformal,
        "shift_detection": detection,
    }
    for name, table in tables.items():
        if table:
            pd.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
    shift_axes = {"shift.kind": list(SLOPES), "shift.severity": list(SEVERITIES)} if shifts else {}
    content = {
        "study": "made-up",
        "question": "May I trust it?",
        "axes": axes | shift_axes,
        "compare": ["predictor"],
        "metrics": ["rms_debiased", "ece", "nll", "accuracy"],
        "where": "pooled:held_out",
        "failed": [],
        "cells": {"all": len(cells), "finished": len(cells)},
        "seconds": 123.0,
        "versions": {"fl-dpbayes": "0.1.0"},
    } | (record or {})
    (folder / "study.json").write_text(json.dumps(content))
    privacy = {"epsilon": 4.0, "delta": 1e-4}
    settings = {
        "study": {"shifted_copy_of": site},
        "privacy": privacy,
        "data": {"source": "digits"},
    }
    (folder / "study.toml").write_text(tomli_w.dumps(settings))
    return folder


@pytest.fixture
def study_folder(tmp_path):
    """Write a study; `edit` changes its table of results, `record` what `study.json` holds."""

    def write(edit=None, record=None, **options):
        folder = write_study_folder(tmp_path / "study", record, **options)
        if edit is not None:
            table = pd.read_csv(folder / "results.csv", keep_default_na=False, na_values=[""])
            changed = edit(table)
            (table if changed is None else changed).to_csv(folder / "results.csv", index=False)
        return folder

    return write


@pytest.fixture
def study(study_folder):
    """Write a study and read it."""
    return lambda edit=None, record=None, **options: read_study(
        study_folder(edit, record, **options)
    )


def make_hospitals_summary(count: int, seed: int = 0) -> dict:
    """Make a run of two classes with so many hospitals, half of which trained, each in doubt.

    Their calibration is drawn, and its intervals are as wide as their patients leave open.
    """
    summary = make_measured_summary() | {"class_names": ["well", "dead or dependent"]}
    generator = np.random.default_rng(seed)
    template = {**summary["calibration"][0], "net_benefit": None}
    roles = ["train" if number % 2 else "held_out" for number in range(count)]
    sizes = generator.permutation(np.geomspace(20, 400, count)).astype(int)
    calibration = [row for row in summary["calibration"] if row["site"].startswith("pooled:")]
    sites, privacy, subgroups = [], [], []
    for number, (role, n) in enumerate(zip(roles, sizes.tolist(), strict=True)):
        name = f"hospital-{number}"
        intercept, slope = generator.normal(0, 0.5), generator.normal(1, 0.25)
        area, risk = generator.uniform(0.5, 0.85), generator.uniform(0.1, 0.5)
        half, rate = 5 / math.sqrt(n), risk + 0.15 * intercept
        measured = template | {
            "site": name,
            "role": role,
            "n": n,
            "auroc": area,
            "mean_risk": risk,
            "event_rate": min(0.95, max(0.05, rate)),
            "calibration_intercept": intercept,
            "calibration_slope": slope,
            "intervals": {
                "auroc": [area - half / 8, min(1.0, area + half / 8)],
                "event_rate": [max(0.0, rate - half / 5), min(1.0, rate + half / 5)],
                "calibration_intercept": [intercept - half, intercept + half],
                "calibration_slope": [slope - half, slope + half],
                "rms_debiased": [0.01, 0.09],
            },
        }
        calibration += [measured | {"predictor": name} for name in ("last", "posterior")]
        sites.append({"name": name, "role": role, "n": 4 * n, "unit": "patient", "test_n": n})
        sites[-1]["shares"] = [1 - measured["event_rate"], measured["event_rate"]]
        if role == "train":
            privacy.append({**summary["privacy"][0], "site": name})
        for value in ("female", "male"):
            subgroups.append(measured | {"attribute": "sex", "value": value, "n": n // 2})
    return summary | {
        "sites": sites,
        "privacy": privacy,
        "calibration": calibration,
        "subgroups": [*summary["subgroups"], *subgroups],
        "reliability": [],
    }


@pytest.fixture
def hospitals_summary():
    return make_hospitals_summary
