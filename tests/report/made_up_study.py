"""Writes the folder of a study with made-up numbers, of which every mean is known."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import tomli_w

from fl_dpbayes.calibration.paired import paired_difference

LAST, POSTERIOR = 0.064, 0.031
SEVERITIES, KINDS = (1, 2, 3, 4, 5), ("gamma", "detector_noise", "rotation")


def error(predictor: str, alpha: float, seed: int, noise: float, severity: int = 0, slope: float = 0.02) -> float:
    """A calibration error whose mean over seeds 1, 2, 3 and over alphas is LAST or POSTERIOR at severity 0."""
    base = LAST if predictor == "last" else POSTERIOR
    return base + 0.01 * (1 if alpha < 1 else -1) + noise * (seed - 2) + slope * severity


def write_study(
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
    """Write a study's files.

    Args:
        folder: where.
        seeds: of the runs.
        alphas: of the Dirichlet partition.
        shifts: with shifted sites.
        further: with subgroups, conformal sets, shift detection, known truth.
        noise: how far apart seeds are.
        last_noise: the same for the last iterate; default: as for the posterior.
        question: what was asked.
        site: name of the held-out site.
        where: the study's place.
        extra_axes: further axes that change nothing.

    Returns:
        The folder.
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
                rms = error(predictor, alpha, seed, spread, severity or 0, slope)
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
                                 "auroc": 0.5 + 0.06 * (severity or 0) + 0.01 * (seed - 2)}
                    )  # fmt: skip
    results = pd.DataFrame(rows)
    results.to_csv(folder / "results.csv", index=False)
    differences(results, list(extra)).to_csv(folder / "differences.csv", index=False)
    for name, table in (("subgroups", subgroups), ("conformal", conformal), ("shift_detection", detection)):
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


def differences(results: pd.DataFrame, extra: list[str]) -> pd.DataFrame:
    """Pair the posterior with the last iterate at every place, as the study engine does."""
    rows = []
    axes = ["partition.alpha", *extra]
    for metric, site in itertools.product(("rms_debiased", "ece", "nll", "accuracy"), results["site"].unique()):
        here = results[results["site"] == site]
        both = here.pivot_table(index=[*axes, "seed"], columns="predictor", values=metric)
        each = (both["posterior"] - both["last"]).reset_index(name="difference")
        first = {"compared": "predictor", "method": "posterior", "baseline": "last", "metric": metric, "site": site}
        for setting, of_setting in each.groupby(axes):
            at = dict(zip(axes, setting, strict=True))
            rows.append(first | {"over": "setting"} | at | interval(of_setting["difference"].to_numpy()))
        over_settings = each.groupby("seed")["difference"].mean().to_numpy()
        rows.append(first | {"over": "all"} | dict.fromkeys(axes, "all") | interval(over_settings))
    return pd.DataFrame(rows)


def interval(values: np.ndarray) -> dict[str, float | int | None]:
    """Write a mean with its interval as the study engine does."""
    found = paired_difference(values, np.zeros(len(values)))
    if found is None:
        return {"mean": float(values[0]), "low": None, "high": None, "pairs": 1}
    return {"mean": found.mean, "low": found.interval.low, "high": found.interval.high, "pairs": found.pairs}
