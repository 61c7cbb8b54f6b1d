"""The run's `summary.json`, in the keys of its contract."""

import importlib.metadata
import math
import platform
from typing import Any

import numpy as np
import torch

import fl_dpbayes
from fl_dpbayes.protocol.train import PrivacyStatement
from server.evaluation import Evaluation
from server.run_record import RunRecord
from server.strategy import Federation


def summarise_run(
    federation: Federation, record: RunRecord, evaluation: Evaluation | None, heterogeneity: float | None
) -> dict[str, Any]:
    """Gather everything that a run shows for itself.

    Args:
        federation: what was fixed.
        record: what happened.
        evaluation: the sites' statistics; None if the run did not get that far.
        heterogeneity: mean total variation between training sites' labels and the pooled ones, where known.

    Returns:
        The summary.
    """
    scenario, members = federation.scenario, federation.roster.members
    calibration, reliability = evaluation.rows(scenario.seed) if evaluation else ([], [])
    statements = evaluation.statements if evaluation else {}
    tested = {row["site"]: row["n"] for row in calibration}
    return {
        "scenario": scenario.name,
        "description": scenario.description,
        "seed": scenario.seed,
        "run": federation.run,
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
        "aggregation": scenario.aggregation.rule,
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
        "privacy": [_privacy(member.card.name, record) for member in federation.roster.training],
        "calibration": calibration,
        "reliability": reliability,
        "evaluation_privacy": [_evaluation_privacy(*item) for item in statements.items()],
        "releases": [*_releases(federation), *(_paid_evaluation(*item) for item in statements.items())],
        "bytes": {
            "up": [row["bytes_up"] for row in record.round_rows],
            "down": [row["bytes_down"] for row in record.round_rows],
        },
        "seconds": {stage: round(seconds, 3) for stage, seconds in record.seconds.items()},
        "configurations_tried": scenario.configurations_tried,
        "warnings": [*federation.roster.left_out, *record.warnings],
        "heterogeneity": heterogeneity,
    }


def _privacy(site: str, record: RunRecord) -> dict[str, Any]:
    statement = record.statements.get(site)
    mean, span = record.temperature(site)
    row: dict[str, Any] = {"site": site, "status": record.status(site), "temperature": mean, "temperature_range": span}
    if statement is None:
        return row
    return row | {
        "delta": statement.delta,
        "epsilon": float("inf") if statement.epsilon is None else statement.epsilon,
        "epsilon_method": statement.epsilon_method,
        "mu": float("inf") if statement.mu is None else statement.mu,
        "mu_kind": statement.mu_kind,
        "steps": statement.steps,
        "rounds": sum(outcome.usable for outcome in record.outcomes.get(site, [])),
        "budget": statement.budget,
        "unit": statement.unit,
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
        "budget": statement.budget,
    }


def _paid_evaluation(site: str, statement: PrivacyStatement) -> dict[str, str]:
    epsilon = "inf" if statement.epsilon is None else f"{math.ceil(statement.epsilon * 1000) / 1000:.3f}"
    item = f"test records of {site}: epsilon {epsilon} of {statement.budget:g} at delta {statement.delta:g}"
    return {"item": item, "how": "paid in ledger"}


def _releases(federation: Federation) -> list[dict[str, str]]:
    how = {"public": "public by declaration", "noised": "paid in ledger", "none": "not sent"}
    evaluation = sorted({how[member.card.evaluation_release] for member in federation.roster.members})
    return [
        {"item": "posterior samples and last state of each chain", "how": "paid in ledger"},
        {
            "item": "spending: planned noise, steps done, epsilon, head of the ledger's chain",
            "how": "public by declaration",
        },
        {"item": "number of privacy units, role, shift, shape and classes of records", "how": "public by declaration"},
        {"item": "refusals: a fixed code and the name of a request's field", "how": "public by declaration"},
        {"item": "sums over test records (calibration statistics)", "how": ", ".join(evaluation)},
        {"item": "records, labels, losses, gradients, clipped fraction, realised batch sizes", "how": "not sent"},
    ]
