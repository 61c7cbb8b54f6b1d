"""The run's `summary.json`, in the keys of its contract."""

import importlib.metadata
import math
import platform
from typing import Any

import numpy as np
import torch

import fl_dpbayes
from fl_dpbayes.config.recalibration import COUNTED
from fl_dpbayes.config.warning import warning
from fl_dpbayes.posterior.convergence import (
    convergence_rows,
    convergence_warnings,
    mixture_warnings,
    optimiser_warnings,
    temperature_warnings,
)
from fl_dpbayes.privacy.check_statement import largest_at_small_delta
from fl_dpbayes.protocol.train import PrivacyStatement
from fl_dpbayes.report.settings_table import settings_table
from fl_dpbayes.report.warnings import sentence, sentences
from server.recalibration import Recalibration
from server.roster import Federation
from server.run_record import RunRecord
from server.strategies.fald import FALDStrategy
from server.strategies.strategy import PosteriorStrategy


def summarise_run(strategy: PosteriorStrategy, record: RunRecord, heterogeneity: float | None) -> dict[str, Any]:
    """Gather everything that a run shows for itself."""
    federation, evaluation, recalibration = strategy.federation, strategy.evaluation, strategy.recalibration
    scenario, members = federation.scenario, federation.roster.members
    bank, chains = strategy.bank, strategy.chain_names()
    trainers = [member.card.name for member in federation.roster.training]
    hot = temperature_warnings(scenario, {site: record.temperature(site)[0] for site in trainers})
    convergence = convergence_rows(scenario, bank, chains, hot=bool(hot))
    calibration, reliability = evaluation.rows() if evaluation else ([], [])
    statements = evaluation.statements if evaluation else {}
    tested = {row["site"]: row["n"] for row in calibration}
    privacy = [_privacy(site, record, recalibration) for site in trainers]
    return {
        "scenario": scenario.name,
        "description": scenario.description,
        "seed": scenario.seed,
        "run": federation.run,
        "resumed_after": record.resumed_after,
        "versions": {
            "fl-dpbayes": fl_dpbayes.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "flwr": importlib.metadata.version("flwr"),
        },
        "adjacency": scenario.privacy.adjacency,
        "seeded": any(member.card.seeded for member in members)
        or any(statement.seeded for statement in record.statements.values()),
        "private": scenario.privacy.kind == "dp",
        "settings": settings_table(scenario, federation.planned_sites, record.aggregation_inputs),
        "sampler": scenario.sampler.kind,
        "chains": scenario.training.chains,
        "aggregation": scenario.aggregation.rule,
        "aggregation_inputs": record.aggregation_inputs,
        "sites": [
            {
                "name": member.card.name,
                "role": member.card.role,
                "n": member.card.units,
                "unit": member.card.unit,
                "shift": member.card.shift,
                "test_n": tested.get(member.card.name),
            }
            for member in members
        ],
        "clipped": scenario.privacy.clip_norm is not None,
        "averaged_temperature": strategy.averaged_temperature() if isinstance(strategy, FALDStrategy) else None,
        "privacy": privacy,
        "small_delta": largest_at_small_delta(privacy, scenario.privacy.adjacency),
        "participation": [{"site": site, "statuses": record.participation(site)} for site in trainers],
        "recalibration": _recalibration(recalibration),
        "calibration": calibration,
        "reliability": reliability,
        "subgroups": evaluation.subgroup_rows() if evaluation else [],
        "shift_detection": evaluation.shift_detection_rows() if evaluation else [],
        "conformal": evaluation.conformal() if evaluation else [],
        "evaluation_privacy": [_evaluation_privacy(*item) for item in statements.items()],
        "releases": [*_releases(federation, recalibration), *(_paid_evaluation(*item) for item in statements.items())],
        "bytes": {
            "up": [row["bytes_up"] for row in record.round_rows],
            "down": [row["bytes_down"] for row in record.round_rows],
        },
        "seconds": {stage: round(seconds, 3) for stage, seconds in record.seconds.items()},
        "configurations_tried": scenario.configurations_tried,
        "convergence": [row | {"warning": sentence(row["warning"]) if row["warning"] else ""} for row in convergence],
        "warnings": [
            *([] if scenario.privacy.kind == "dp" else sentences([warning("not-private")])),
            *map(sentence, federation.roster.left_out),
            *sentences(record.warnings),
            *map(sentence, optimiser_warnings(scenario)),
            *map(sentence, mixture_warnings(scenario, bank, chains)),
            *map(sentence, convergence_warnings(convergence)),
            *map(sentence, hot),
        ],
        "heterogeneity": heterogeneity,
    }


def _privacy(site: str, record: RunRecord, recalibration: Recalibration | None) -> dict[str, Any]:
    statement = record.statements.get(site)
    mean, span = record.temperature(site)
    row: dict[str, Any] = {"site": site, "status": record.status(site), "temperature": mean, "temperature_range": span}
    if recalibration is not None and site in recalibration.statements:
        # Of a part of its own, so beside the training's epsilon and not on top of it.
        epsilon = recalibration.statements[site].epsilon
        row["recalibration_epsilon"] = float("inf") if epsilon is None else epsilon
    if statement is None:
        return row
    return row | {
        "delta": statement.delta,
        "epsilon": float("inf") if statement.epsilon is None else statement.epsilon,
        "epsilon_method": statement.epsilon_method,
        "mu": float("inf") if statement.mu is None else statement.mu,
        "mu_kind": statement.mu_kind,
        "steps": statement.steps,
        "history": [list(row) for row in statement.history],
        "rounds": record.rounds_used(site),
        "budget": float("inf") if statement.budget is None else statement.budget,
        "unit": statement.unit,
    }


def _recalibration(recalibration: Recalibration | None) -> dict[str, Any] | None:
    if recalibration is None:
        return None
    return {
        "method": recalibration.average.method,
        "noise": sentence(recalibration.noise) if recalibration.noise else "",
        "average": list(recalibration.average.parameters),
        "sites": {site: list(own.parameters) for site, own in recalibration.own.items()},
    }


def _evaluation_privacy(site: str, statement: PrivacyStatement) -> dict[str, Any]:
    return {
        "site": site,
        "unit": statement.unit,
        "delta": statement.delta,
        "epsilon": float("inf") if statement.epsilon is None else statement.epsilon,
        "epsilon_method": statement.epsilon_method,
        "mu": float("inf") if statement.mu is None else statement.mu,
        "mu_kind": statement.mu_kind,
        "budget": float("inf") if statement.budget is None else statement.budget,
    }


def _paid_evaluation(site: str, statement: PrivacyStatement) -> dict[str, str]:
    epsilon = "inf" if statement.epsilon is None else f"{math.ceil(statement.epsilon * 1000) / 1000:.3f}"
    budget = float("inf") if statement.budget is None else statement.budget
    item = f"test records of {site}: epsilon {epsilon} of {budget:g} at delta {statement.delta:g}"
    return {"item": item, "how": "paid in ledger"}


def _prevalences(federation: Federation) -> list[dict[str, str]]:
    cards = [member.card for member in federation.roster.members]
    declared = [card.name for card in cards if isinstance(card.prevalence, tuple)]
    estimated = [card.name for card in cards if card.prevalence == "estimated"]
    places = [*(["the training population"] if federation.scenario.data.prevalence else []), *declared]
    rows = []
    if places:
        rows.append({"item": f"prevalence of the classes: {', '.join(places)}", "how": "public by declaration"})
    if estimated:
        rows.append({"item": f"estimated prevalence of the classes: {', '.join(estimated)}", "how": "not sent"})
    return rows


def _releases(federation: Federation, recalibration: Recalibration | None) -> list[dict[str, str]]:
    how = {"public": "public by declaration", "noised": "paid in ledger", "none": "not sent"}
    evaluation = sorted({how[member.card.evaluation_release] for member in federation.roster.members})
    exactly = sorted({how["public"] if how["public"] == sent else how["none"] for sent in evaluation})
    paid = "paid in ledger" if federation.scenario.privacy.kind == "dp" else "sent without privacy"
    counted = recalibration is not None and recalibration.average.method in COUNTED
    maps = {"item": "counts of bins for recalibration" if counted else "parameters of recalibration", "how": paid}
    return [
        *([maps] if recalibration else []),
        *_prevalences(federation),
        {"item": "posterior samples and last state of each chain", "how": paid},
        {
            "item": "spending: planned noise, steps done, epsilon, head of the ledger's chain",
            "how": "public by declaration",
        },
        {"item": "number of privacy units, role, shift, shape and classes of records", "how": "public by declaration"},
        {"item": "refusals: a fixed code and the name of a request's field", "how": "public by declaration"},
        {"item": "sums over test records (calibration statistics)", "how": ", ".join(evaluation)},
        {
            "item": "histograms of the test records' uncertainty; the same sums over subgroups of them",
            "how": ", ".join(exactly),
        },
        {"item": "records, labels, losses, gradients, clipped fraction, realised batch sizes", "how": "not sent"},
    ]
