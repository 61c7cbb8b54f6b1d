"""The run's `summary.json`, in the keys of its contract."""

import importlib.metadata
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

from fl_dpbayes.calibration import CalibrationRecord
from fl_dpbayes.config import COUNTED, RunWarning, warning
from fl_dpbayes.config.installed_code import installed_code
from fl_dpbayes.posterior import convergence as mixing
from fl_dpbayes.privacy import largest_at_small_delta
from fl_dpbayes.protocol import PrivacyStatement
from fl_dpbayes.report import Summary, sentence, sentences
from fl_dpbayes.report.settings_table import settings_table
from fl_dpbayes.samplers import record_by_record_warnings
from fl_dpbayes.version import __version__
from server.recalibration import Recalibration
from server.roster import Federation
from server.run_record import RunRecord, cost_cells
from server.strategies.fald import FALDStrategy
from server.strategies.strategy import PosteriorStrategy

PUBLIC, PAID, NOT_SENT = "public by declaration", "paid in ledger", "not sent"


def summarise_run(
    strategy: PosteriorStrategy, record: RunRecord, partition: Mapping[str, Any]
) -> Summary:
    """Gather everything that a run shows for itself.

    `partition` holds what was measured of the sites' data in a simulation: `label_total_variation`,
    the mean total variation between training sites' labels and the pooled ones, and, where known,
    `feature_total_variation`, `baselines` and `warnings`. Both variations are exact, so they are
    shown where test results are public only.
    """
    federation, evaluation, recalibration = (
        strategy.federation,
        strategy.evaluation,
        strategy.recalibration,
    )
    scenario, cards = federation.scenario, [member.card for member in federation.roster.members]
    names: tuple[str, ...] = getattr(scenario.data.source, "class_names", ())
    bank, chains = strategy.bank, strategy.chain_names()
    trainers = [member.card.name for member in federation.roster.training]
    distances = strategy.distances()
    hot = mixing.temperature_warnings(
        scenario, {site: record.temperature(site)[0] for site in trainers}
    )
    convergence = mixing.convergence_rows(scenario, bank, chains, hot=bool(hot))
    calibration = evaluation.calibration_rows() if evaluation else []
    statements = evaluation.statements if evaluation else {}
    beside = _same_records(partition.get("baselines"), calibration)
    how = "computed from training records without privacy: not covered by epsilon"
    fitted = (
        [{"item": "results of simpler predictors", "how": how}] if beside and beside["rows"] else []
    )
    unlike = partition if scenario.evaluation.release == "public" else {}
    tested = {row.site: row.n for row in calibration}
    privacy = [_privacy(site, record, recalibration) for site in trainers]
    tested_costs = [
        {"site": site, "unit": said.unit} | cost_cells(said) for site, said in statements.items()
    ]
    versions = {
        "fl-dpbayes": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "flwr": importlib.metadata.version("flwr"),
    }
    sites = [
        {
            "name": c.name,
            "role": c.role,
            "n": c.units,
            "unit": c.unit,
            "shift": c.shift,
            "test_n": tested.get(c.name),
            "shares": evaluation.class_shares(c.name) if evaluation else None,
        }
        for c in cards
    ]
    seeded = [
        card.name
        for card in cards
        if card.seeded or ((said := record.statements.get(card.name)) and said.seeded)
    ]
    of_few = seeded if len(seeded) < len(cards) else []
    told = [
        *([] if scenario.privacy.kind == "dp" else sentences([warning("not-private")])),
        *(sentences([warning("seeded", site) for site in of_few])),
        *(sentences([warning("looked-at")]) if scenario.data.source.looked_at else []),
        *sentences(map(RunWarning.model_validate, partition.get("warnings", ()))),
        *sentences(record_by_record_warnings(scenario.model, federation.roster.task)),
        *map(sentence, federation.roster.left_out),
        *sentences(record.warnings),
        *map(sentence, mixing.optimiser_warnings(scenario)),
        *map(sentence, mixing.mixture_warnings(scenario, bank, chains)),
        *map(sentence, mixing.convergence_warnings(convergence)),
        *map(sentence, hot),
    ]
    records = (
        scenario.data.source.origin if federation.simulation_folder else "each site's own records"
    )
    return Summary.model_validate(
        {
            "scenario": scenario.name,
            "description": scenario.description,
            "data": records,
            "finished": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "seed": scenario.seed,
            "run": federation.run,
            "resumed_after": record.resumed_after,
            "versions": versions,
            "code": [
                found.model_dump()
                for name in scenario.named_code
                if (found := installed_code(name))
            ],
            "adjacency": scenario.privacy.adjacency,
            "seeded": bool(seeded),
            "private": scenario.privacy.kind == "dp",
            "class_names": names if len(names) == federation.roster.task.classes else (),
            "settings": settings_table(scenario, record.aggregation_inputs),
            "sampler": scenario.sampler.kind,
            "chains": scenario.training.chains,
            "aggregation": scenario.aggregation.rule,
            "aggregation_inputs": record.aggregation_inputs,
            "sites": sites,
            "clipped": scenario.privacy.clip_norm is not None,
            "coupling": getattr(scenario.privacy, "coupling", ""),
            "averaged_temperature": strategy.averaged_temperature()
            if isinstance(strategy, FALDStrategy)
            else None,
            "privacy": privacy,
            "small_delta": largest_at_small_delta(privacy, scenario.privacy.adjacency),
            "participation": [
                {
                    "site": name,
                    "statuses": record.participation(name),
                    "distance": distances.get(name),
                }
                for name in trainers
            ],
            "recalibration": _recalibration(recalibration),
            "calibration": calibration,
            "baselines": beside,
            "reliability": evaluation.reliability_rows() if evaluation else (),
            "subgroups": evaluation.subgroup_rows() if evaluation else (),
            "shift_detection": evaluation.shift_detection_rows() if evaluation else (),
            "hospitals": hospitals.described() if (hospitals := strategy.hospitals()) else (),
            "conformal": evaluation.conformal_rows() if evaluation else (),
            "evaluation_privacy": tested_costs,
            "releases": [
                *_releases(federation, recalibration),
                *fitted,
                *map(_paid_test, statements, statements.values()),
            ],
            "bytes": {
                way: [row[f"bytes_{way}"] for row in record.round_rows] for way in ("up", "down")
            },
            "seconds": {stage: round(seconds, 3) for stage, seconds in record.seconds.items()},
            "passes": [
                row.model_copy(update={"sites": tuple(sites)})
                for row, sites in record.passes.items()
            ],
            "configurations_tried": scenario.configurations_tried,
            "convergence": [
                {"site": row.site, **asdict(row.summary)}
                | {"warning": sentence(row.warning) if row.warning else ""}
                for row in convergence
            ],
            "warnings": told,
            "heterogeneity": unlike.get("label_total_variation"),
            **{name: unlike[name] for name in ("feature_total_variation",) if name in unlike},
        }
    )


def _same_records(
    found: dict[str, Any] | None, calibration: Sequence[CalibrationRecord]
) -> dict[str, Any] | None:
    """Leave out the simpler predictors where the run itself was measured on other records, since a site fell silent."""
    if not found:
        return None
    own, kept, missing = (
        {row.site: row.n for row in calibration},
        [],
        dict(found.get("missing", {})),
    )
    for row in found.get("rows", ()):
        if (measured := own.get(row["site"], 0)) == row["n"]:
            kept.append(row)
        else:
            missing[f"simpler predictors at {row['site']}"] = (
                f"the run measured {measured} of its {row['n']} records"
            )
    return {"rows": kept, "missing": missing}


def _privacy(site: str, record: RunRecord, recalibration: Recalibration | None) -> dict[str, Any]:
    statement = record.statements.get(site)
    mean, span = record.temperature(site)
    row: dict[str, Any] = {
        "site": site,
        "status": record.status(site),
        "temperature": mean,
        "temperature_range": span,
    }
    if recalibration is not None and site in recalibration.statements:
        # Of a part of its own, so beside the training's epsilon and not on top of it.
        row["recalibration_epsilon"] = cost_cells(recalibration.statements[site])["epsilon"]
    if statement is not None:
        row |= cost_cells(statement) | {"history": statement.history, "unit": statement.unit}
        row["rounds"] = record.outcomes[site].used
    return row


def _recalibration(recalibration: Recalibration | None) -> dict[str, Any] | None:
    if recalibration is None:
        return None
    average, own = (
        recalibration.average,
        {site: own.parameters for site, own in recalibration.own.items()},
    )
    noise = sentence(recalibration.noise) if recalibration.noise else ""
    return {"method": average.method, "noise": noise, "average": average.parameters, "sites": own}


def _paid_test(site: str, statement: PrivacyStatement) -> dict[str, str]:
    epsilon = (
        "inf" if statement.epsilon is None else f"{math.ceil(statement.epsilon * 1000) / 1000:.3f}"
    )
    spent = f"epsilon {epsilon} of {cost_cells(statement)['budget']:g} at delta {statement.delta:g}"
    return {"item": f"test records of {site}: {spent}", "how": PAID}


def _releases(federation: Federation, recalibration: Recalibration | None) -> list[dict[str, str]]:
    how = {"public": PUBLIC, "noised": PAID, "none": NOT_SENT}
    cards = [member.card for member in federation.roster.members]
    evaluation = sorted({how[card.evaluation_release] for card in cards})
    exactly = sorted({PUBLIC if sent == PUBLIC else NOT_SENT for sent in evaluation})
    paid = PAID if federation.scenario.privacy.kind == "dp" else "sent without privacy"
    counted = recalibration is not None and recalibration.average.method in COUNTED
    maps = "counts of bins for recalibration" if counted else "parameters of recalibration"
    declared = ["the training population"] if federation.scenario.data.prevalence else []
    declared += [card.name for card in cards if isinstance(card.prevalence, tuple)]
    estimated = [card.name for card in cards if card.prevalence == "estimated"]
    items = {
        **({maps: paid} if recalibration else {}),
        **({f"prevalence of the classes: {', '.join(declared)}": PUBLIC} if declared else {}),
        **(
            {f"estimated prevalence of the classes: {', '.join(estimated)}": NOT_SENT}
            if estimated
            else {}
        ),
        "posterior samples and last state of each chain": paid,
        "spending: planned noise, steps done, epsilon, head of the ledger's chain": PUBLIC,
        "number of privacy units, role, shift, shape and classes of records": PUBLIC,
        "refusals: a fixed code and the name of a request's field": PUBLIC,
        "processor, library, records in a pass: by checks on made-up records": PUBLIC,
        "sums over test records (calibration statistics)": ", ".join(evaluation),
        "histograms of the test records' uncertainty; the same sums over subgroups of them": ", ".join(
            exactly
        ),
        "records, labels, losses, gradients, clipped fraction, realised batch sizes": NOT_SENT,
    }
    return [{"item": item, "how": way} for item, way in items.items()]
