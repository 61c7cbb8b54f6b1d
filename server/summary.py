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
from server.round_outcomes import cost_cells
from server.run_record import RunRecord
from server.strategies.strategy import PosteriorStrategy

PUBLIC = "public by declaration"
PAID = "paid in ledger"
NOT_SENT = "not sent"
HOW_EVALUATION_IS_RELEASED = {"public": PUBLIC, "noised": PAID, "none": NOT_SENT}
Row = dict[str, Any]


def summarise_run(
    strategy: PosteriorStrategy, record: RunRecord, partition: Mapping[str, Any]
) -> Summary:
    """Gather everything that a run shows for itself.

    Args:
        strategy: The run's strategy, after its last round.
        record: What the run did.
        partition: What was measured of the sites' data in a simulation: `label_total_variation`,
            the mean total variation between training sites' labels and the pooled ones, and, where
            known, `feature_total_variation`, `baselines` and `warnings`. Both variations are exact,
            so they are shown where test results are public only.
    """
    federation = strategy.federation
    scenario = federation.scenario
    privacy = _privacy_rows(strategy, record)
    measured = _measured(strategy, partition)
    class_names: tuple[str, ...] = getattr(scenario.data.source, "class_names", ())
    if len(class_names) != federation.roster.task.outcome.outputs:
        class_names = ()
    seeded = _seeded_sites(federation, record)
    convergence = _Convergence(strategy, record)
    warnings = _warnings(strategy, record, partition, seeded, convergence)
    hospitals = strategy.hospitals()
    data = scenario.data.source.origin
    if not federation.simulation_folder:
        data = "each site's own records"
    return Summary.model_validate(
        {
            "scenario": scenario.name,
            "description": scenario.description,
            "data": data,
            "finished": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "seed": scenario.seed,
            "run": federation.run,
            "resumed_after": record.resumed_after,
            "versions": _versions(),
            "code": _installed_code(scenario.named_code),
            "adjacency": scenario.privacy.adjacency,
            "seeded": bool(seeded),
            "private": scenario.privacy.kind == "dp",
            "class_names": class_names,
            "settings": settings_table(scenario, record.aggregation_inputs),
            "sampler": scenario.sampler.kind,
            "chains": scenario.training.chains,
            "aggregation": scenario.aggregation.rule,
            "aggregation_inputs": record.aggregation_inputs,
            "clipped": scenario.privacy.clip_norm is not None,
            "coupling": getattr(scenario.privacy, "coupling", ""),
            "averaged_temperature": strategy.averaged_temperature(),
            "privacy": privacy,
            "small_delta": largest_at_small_delta(privacy, scenario.privacy.adjacency),
            "participation": _participation_rows(strategy, record),
            "recalibration": _recalibration(strategy.recalibration),
            "hospitals": hospitals.described() if hospitals else (),
            "bytes": {
                way: [row[f"bytes_{way}"] for row in record.round_rows] for way in ("up", "down")
            },
            "seconds": {stage: round(seconds, 3) for stage, seconds in record.seconds.items()},
            "passes": [
                passes.model_copy(update={"sites": tuple(sites)})
                for passes, sites in record.passes.items()
            ],
            "configurations_tried": scenario.configurations_tried,
            "convergence": convergence.rows_in_words(),
            "warnings": warnings,
            **measured,
            **_heterogeneity(federation, partition),
        }
    )


def _privacy_rows(strategy: PosteriorStrategy, record: RunRecord) -> list[Row]:
    return [
        _privacy_row(member.card.name, record, strategy.recalibration)
        for member in strategy.federation.roster.training
    ]


def _privacy_row(site: str, record: RunRecord, recalibration: Recalibration | None) -> Row:
    statement = record.statements.get(site)
    history = record.histories[site]
    row: Row = {
        "site": site,
        "status": history.describe(),
        "temperature": record.mean_temperature(site),
        "temperature_range": record.temperature_range(site),
    }
    if recalibration is not None and site in recalibration.statements:
        # Of a part of its own, so beside the training's epsilon and not on top of it.
        row["recalibration_epsilon"] = cost_cells(recalibration.statements[site])["epsilon"]
    if statement is not None:
        row |= cost_cells(statement)
        row["history"] = statement.history
        row["unit"] = statement.unit
        row["rounds"] = history.used_replies
    return row


def _measured(strategy: PosteriorStrategy, partition: Mapping[str, Any]) -> Row:
    """Return what was measured of the sites' records, and what left the sites for it."""
    evaluation = strategy.evaluation
    calibration = evaluation.calibration_rows() if evaluation else []
    statements = evaluation.statements if evaluation else {}
    tested_records = {row.site: row.n for row in calibration}
    baselines = _same_records(partition.get("baselines"), calibration)
    releases = _releases(strategy.federation, strategy.recalibration)
    if baselines and baselines["rows"]:
        how = "computed from training records without privacy: not covered by epsilon"
        releases.append({"item": "results of simpler predictors", "how": how})
    releases += [_paid_test(site, statement) for site, statement in statements.items()]
    sites = []
    for member in strategy.federation.roster.members:
        card = member.card
        sites.append(
            {
                "name": card.name,
                "role": card.role,
                "n": card.units,
                "unit": card.unit,
                "shift": card.shift,
                "test_n": tested_records.get(card.name),
                "shares": evaluation.class_shares(card.name) if evaluation else None,
            }
        )
    return {
        "sites": sites,
        "calibration": calibration,
        "baselines": baselines,
        "reliability": evaluation.reliability_rows() if evaluation else (),
        "subgroups": evaluation.subgroup_rows() if evaluation else (),
        "shift_detection": evaluation.shift_detection_rows() if evaluation else (),
        "conformal": evaluation.conformal_rows() if evaluation else (),
        "evaluation_privacy": [
            {"site": site, "unit": statement.unit, **cost_cells(statement)}
            for site, statement in statements.items()
        ],
        "releases": releases,
    }


def _heterogeneity(federation: Federation, partition: Mapping[str, Any]) -> Row:
    if federation.scenario.evaluation.release != "public":
        return {"heterogeneity": None}
    row: Row = {"heterogeneity": partition.get("label_total_variation")}
    if "feature_total_variation" in partition:
        row["feature_total_variation"] = partition["feature_total_variation"]
    return row


class _Convergence:
    """How well the chains mix, and which sites are too warm.

    Attributes:
        rows: One of each chain.
        temperature_warnings: Of sites whose temperature is not 1.
    """

    def __init__(self, strategy: PosteriorStrategy, record: RunRecord) -> None:
        scenario = strategy.federation.scenario
        temperatures = {
            member.card.name: record.mean_temperature(member.card.name)
            for member in strategy.federation.roster.training
        }
        self.temperature_warnings = mixing.temperature_warnings(scenario, temperatures)
        self.rows = mixing.convergence_rows(
            scenario, strategy.bank, strategy.chain_names(), hot=bool(self.temperature_warnings)
        )

    def rows_in_words(self) -> list[Row]:
        """Return the rows with their warnings as sentences."""
        return [
            {
                "site": row.site,
                **asdict(row.summary),
                "warning": sentence(row.warning) if row.warning else "",
            }
            for row in self.rows
        ]


def _warnings(
    strategy: PosteriorStrategy,
    record: RunRecord,
    partition: Mapping[str, Any],
    seeded: Sequence[str],
    convergence: _Convergence,
) -> list[str]:
    federation = strategy.federation
    scenario = federation.scenario
    texts = []
    if scenario.privacy.kind != "dp":
        texts += sentences([warning("not-private")])
    # Where all sites are seeded, the page says so once.
    if len(seeded) < len(federation.roster.members):
        texts += sentences([warning("seeded", site) for site in seeded])
    if scenario.data.source.looked_at:
        texts += sentences([warning("looked-at")])
    of_partition = [RunWarning.model_validate(row) for row in partition.get("warnings", ())]
    of_mixture = mixing.mixture_warnings(scenario, strategy.bank, strategy.chain_names())
    return [
        *texts,
        *sentences(of_partition),
        *sentences(record_by_record_warnings(scenario.model, federation.roster.task)),
        *map(sentence, federation.roster.left_out),
        *sentences(record.warnings),
        *map(sentence, mixing.optimiser_warnings(scenario)),
        *map(sentence, of_mixture),
        *map(sentence, mixing.convergence_warnings(convergence.rows)),
        *map(sentence, convergence.temperature_warnings),
    ]


def _seeded_sites(federation: Federation, record: RunRecord) -> list[str]:
    """Name the sites whose noise follows from a seed, by their cards or their statements."""
    seeded = []
    for member in federation.roster.members:
        statement = record.statements.get(member.card.name)
        if member.card.seeded or (statement is not None and statement.seeded):
            seeded.append(member.card.name)
    return seeded


def _versions() -> dict[str, str]:
    return {
        "fl-dpbayes": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "flwr": importlib.metadata.version("flwr"),
    }


def _installed_code(names: Sequence[str]) -> list[Row]:
    codes = [installed_code(name) for name in names]
    return [code.model_dump() for code in codes if code is not None]


def _participation_rows(strategy: PosteriorStrategy, record: RunRecord) -> list[Row]:
    distances = strategy.distances()
    rows = []
    for member in strategy.federation.roster.training:
        site = member.card.name
        statuses = record.participation(site)
        rows.append({"site": site, "statuses": statuses, "distance": distances.get(site)})
    return rows


def _same_records(baselines: Row | None, calibration: Sequence[CalibrationRecord]) -> Row | None:
    """Leave out simpler predictors where the run was measured on other records.

    That happens where a site fell silent.
    """
    if not baselines:
        return None
    measured_records = {row.site: row.n for row in calibration}
    rows = []
    missing = dict(baselines.get("missing", {}))
    for row in baselines.get("rows", ()):
        measured = measured_records.get(row["site"], 0)
        if measured == row["n"]:
            rows.append(row)
        else:
            reason = f"the run measured {measured} of its {row['n']} records"
            missing[f"simpler predictors at {row['site']}"] = reason
    return {"rows": rows, "missing": missing}


def _recalibration(recalibration: Recalibration | None) -> Row | None:
    if recalibration is None:
        return None
    return {
        "method": recalibration.average.method,
        "noise": sentence(recalibration.noise) if recalibration.noise else "",
        "average": recalibration.average.parameters,
        "sites": {site: mapping.parameters for site, mapping in recalibration.site_maps.items()},
    }


def _paid_test(site: str, statement: PrivacyStatement) -> dict[str, str]:
    epsilon = "inf"
    if statement.epsilon is not None:
        epsilon = f"{math.ceil(statement.epsilon * 1000) / 1000:.3f}"
    budget = cost_cells(statement)["budget"]
    spent = f"epsilon {epsilon} of {budget:g} at delta {statement.delta:g}"
    return {"item": f"test records of {site}: {spent}", "how": PAID}


def _releases(federation: Federation, recalibration: Recalibration | None) -> list[dict[str, str]]:
    """Return what left the sites, and how it was protected."""
    cards = [member.card for member in federation.roster.members]
    released = sorted({HOW_EVALUATION_IS_RELEASED[card.evaluation_release] for card in cards})
    released_exactly = sorted({PUBLIC if how == PUBLIC else NOT_SENT for how in released})
    paid = PAID if federation.scenario.privacy.kind == "dp" else "sent without privacy"
    items = {}
    if recalibration is not None:
        if recalibration.average.method in COUNTED:
            items["counts of bins for recalibration"] = paid
        else:
            items["parameters of recalibration"] = paid
    declared = ["the training population"] if federation.scenario.data.prevalence else []
    declared += [card.name for card in cards if isinstance(card.prevalence, tuple)]
    if declared:
        items[f"prevalence of the classes: {', '.join(declared)}"] = PUBLIC
    estimated = [card.name for card in cards if card.prevalence == "estimated"]
    if estimated:
        items[f"estimated prevalence of the classes: {', '.join(estimated)}"] = NOT_SENT
    items |= {
        "posterior samples and last state of each chain": paid,
        "spending: planned noise, steps done, epsilon, head of the ledger's chain": PUBLIC,
        "number of privacy units, role, shift, shape and classes of records": PUBLIC,
        "refusals: a fixed code and the name of a request's field": PUBLIC,
        "processor, library, records in a pass: by checks on made-up records": PUBLIC,
        "sums over test records (calibration statistics)": ", ".join(released),
        "histograms of the test records' uncertainty; the same sums over subgroups of them": (
            ", ".join(released_exactly)
        ),
        "records, labels, losses, gradients, clipped fraction, realised batch sizes": NOT_SENT,
    }
    return [{"item": item, "how": how} for item, how in items.items()]
