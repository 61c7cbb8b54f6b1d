"""The run's summary: everything that its page and `summary.json` show."""

import importlib.metadata
import math
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import numpy as np
import torch

from fl_dpbayes.calibration import CalibrationRecord, SummaryPart
from fl_dpbayes.config import COUNTED, RunWarning, warning
from fl_dpbayes.config.installed_code import installed_code
from fl_dpbayes.posterior import HospitalModel, rate_in_words, weak_budget
from fl_dpbayes.posterior import convergence as mixing
from fl_dpbayes.privacy import largest_at_small_delta
from fl_dpbayes.protocol import PrivacyStatement
from fl_dpbayes.report import (
    Baselines,
    ConvergenceRecord,
    EvaluationPrivacyRecord,
    HospitalRecord,
    ParticipationRecord,
    PrivacyRecord,
    RecalibrationRecord,
    ReleaseRecord,
    SiteRecord,
    SmallDeltaRecord,
    Summary,
    Traffic,
    sentence,
    sentences,
)
from fl_dpbayes.report.settings_table import settings_table
from fl_dpbayes.version import __version__
from server.recalibration import Recalibration
from server.roster import Federation
from server.round_outcomes import stated_cost
from server.run_record import RunRecord
from server.strategies.strategy import PosteriorStrategy

PUBLIC = "public by declaration"
PAID = "paid in ledger"
NOT_SENT = "not sent"
HOW_EVALUATION_IS_RELEASED = {"public": PUBLIC, "noised": PAID, "none": NOT_SENT}


class PartitionMeasures(SummaryPart):
    """What was measured of the sites' data in a simulation; real sites have none.

    Both variations are exact, so they are shown where test results are public only.

    Attributes:
        label_total_variation: The mean total variation between training sites' labels and the
            pooled ones.
        feature_total_variation: The same of a score of the features; None where none divides them.
        warnings: What is wrong with the data.
        baselines: What simpler predictors reach.
    """

    label_total_variation: float | None = None
    feature_total_variation: float | None = None
    warnings: tuple[RunWarning, ...] = ()
    baselines: Baselines | None = None


def summarise_run(
    strategy: PosteriorStrategy, record: RunRecord, partition: PartitionMeasures
) -> Summary:
    """Gather everything that a run shows for itself.

    Args:
        strategy: The run's strategy, after its last round.
        record: What the run did.
        partition: What was measured of the sites' data.
    """
    federation = strategy.federation
    scenario = federation.scenario
    evaluation = strategy.evaluation
    recalibration = strategy.recalibration
    calibration = evaluation.calibration_rows()
    outcome = federation.roster.task.outcome
    class_names = scenario.data.source.names_of_classes
    if len(class_names) != outcome.outputs:
        class_names = ()
    seeded = _seeded_sites(federation, record)
    privacy = _privacy_records(strategy, record)
    temperatures = {row.site: row.temperature for row in privacy}
    too_hot = mixing.temperature_warnings(scenario, temperatures)
    convergence = mixing.convergence_rows(
        scenario, strategy.bank, strategy.chain_names(), hot=bool(too_hot)
    )
    baselines = _same_records(partition.baselines, calibration)
    hospitals = strategy.hospitals()
    is_public = scenario.evaluation.release == "public"
    data = scenario.data.source.origin
    if not federation.simulation_folder:
        data = "each site's own records"
    summary = Summary(
        scenario=scenario.name,
        description=scenario.description,
        data=data,
        finished=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        seed=scenario.seed,
        run=federation.run,
        resumed_after=tuple(record.resumed_after),
        versions=_versions(),
        code=tuple(filter(None, map(installed_code, scenario.named_code))),
        adjacency=scenario.privacy.adjacency,
        seeded=bool(seeded),
        private=scenario.sampler.is_private,
        outcome=outcome,
        class_names=class_names,
        settings=settings_table(scenario, record.aggregation_inputs),
        sampler=scenario.sampler.kind,
        chains=scenario.training.chains,
        aggregation=scenario.aggregation.rule,
        aggregation_inputs=record.aggregation_inputs,
        sites=_site_records(strategy, calibration),
        clipped=scenario.privacy.clip_norm is not None,
        coupling=scenario.privacy.coupling,
        averaged_temperature=strategy.averaged_temperature(),
        privacy=privacy,
        small_delta=_small_delta(federation, record),
        participation=_participation_records(strategy, record),
        recalibration=_recalibration_record(recalibration),
        calibration=tuple(calibration),
        baselines=baselines,
        reliability=tuple(evaluation.reliability_rows()),
        subgroups=tuple(evaluation.subgroup_rows()),
        shift_detection=tuple(evaluation.shift_detection_rows()),
        conformal=tuple(evaluation.conformal_rows()),
        hospitals=_hospital_records(hospitals, class_names) if hospitals else (),
        evaluation_privacy=tuple(
            EvaluationPrivacyRecord(site=site, unit=statement.unit, **stated_cost(statement))
            for site, statement in evaluation.statements.items()
        ),
        releases=_releases(strategy, baselines),
        bytes=Traffic(
            up=tuple(row.bytes_up for row in record.round_rows),
            down=tuple(row.bytes_down for row in record.round_rows),
        ),
        seconds={stage: round(seconds, 3) for stage, seconds in record.seconds.items()},
        passes=tuple(
            passes.model_copy(update={"sites": tuple(sites)})
            for passes, sites in record.passes.items()
        ),
        configurations_tried=scenario.configurations_tried,
        convergence=tuple(map(_convergence_record, convergence)),
        warnings=(
            *_warnings(strategy, record, partition, seeded),
            *map(sentence, mixing.convergence_warnings(convergence)),
            *map(sentence, too_hot),
        ),
        heterogeneity=partition.label_total_variation if is_public else None,
    )
    if is_public and partition.feature_total_variation is not None:
        variation = {"feature_total_variation": partition.feature_total_variation}
        summary = summary.model_copy(update=variation)
    return summary


def _privacy_records(strategy: PosteriorStrategy, record: RunRecord) -> tuple[PrivacyRecord, ...]:
    return tuple(
        _privacy_record(member.card.name, record, strategy.recalibration)
        for member in strategy.federation.roster.training
    )


def _privacy_record(
    site: str, record: RunRecord, recalibration: Recalibration | None
) -> PrivacyRecord:
    statement = record.statements.get(site)
    history = record.histories[site]
    status = history.describe()
    temperature = record.mean_temperature(site)
    temperature_range = record.temperature_range(site)
    if statement is None:
        row = PrivacyRecord(
            site=site, status=status, temperature=temperature, temperature_range=temperature_range
        )
    else:
        row = PrivacyRecord(
            site=site,
            unit=statement.unit,
            status=status,
            temperature=temperature,
            temperature_range=temperature_range,
            steps=statement.steps,
            history=statement.history,
            rounds=history.used_replies,
            **stated_cost(statement),
        )
    if recalibration is not None and site in recalibration.statements:
        # Of a part of its own, so beside the training's epsilon and not on top of it.
        epsilon = stated_cost(recalibration.statements[site])["epsilon"]
        row = row.model_copy(update={"recalibration_epsilon": epsilon})
    return row


def _small_delta(federation: Federation, record: RunRecord) -> SmallDeltaRecord | None:
    names = [member.card.name for member in federation.roster.training]
    cost = largest_at_small_delta(
        {name: record.statements[name] for name in names if name in record.statements},
        federation.scenario.privacy.adjacency,
    )
    if cost is None:
        return None
    return SmallDeltaRecord(site=cost.site, delta=cost.delta, epsilon=cost.epsilon)


def _site_records(
    strategy: PosteriorStrategy, calibration: Sequence[CalibrationRecord]
) -> tuple[SiteRecord, ...]:
    tested_records = {row.site: row.n for row in calibration}
    return tuple(
        SiteRecord(
            name=member.card.name,
            role=member.card.role,
            n=member.card.units,
            unit=member.card.unit,
            shift=member.card.shift,
            test_n=tested_records.get(member.card.name),
            shares=strategy.evaluation.class_shares(member.card.name),
        )
        for member in strategy.federation.roster.members
    )


def _hospital_records(
    hospitals: HospitalModel, class_names: Sequence[str]
) -> tuple[HospitalRecord, ...]:
    """Say how hospitals differ: the spreads between them, and new hospitals' rates."""
    spreads = [
        HospitalRecord(
            of=f"standard deviation between {spread.between}",
            value=spread.standard_deviation,
            interval=spread.interval,
            among=spread.count,
            identified=spread.identified,
        )
        for spread in hospitals.spreads
    ]
    rates = []
    for group, expected in hospitals.new_hospital_rates.items():
        hospital = f"a new hospital of {group}" if group else "a new hospital"
        quantity = rate_in_words(class_names, patients="patients as declared", hospital=hospital)
        rates.append(HospitalRecord(of=quantity, value=expected.rate, interval=expected.interval))
    return (*spreads, *rates)


def _convergence_record(row: mixing.ConvergenceRow) -> ConvergenceRecord:
    return ConvergenceRecord(
        site=row.site,
        **asdict(row.summary),
        warning=sentence(row.warning) if row.warning else "",
    )


def _warnings(
    strategy: PosteriorStrategy,
    record: RunRecord,
    partition: PartitionMeasures,
    seeded: Sequence[str],
) -> tuple[str, ...]:
    federation = strategy.federation
    scenario = federation.scenario
    texts = []
    if not scenario.sampler.is_private:
        texts += sentences([warning("not-private")])
    # Where all sites are seeded, the page says so once.
    if len(seeded) < len(federation.roster.members):
        texts += sentences([warning("seeded", site) for site in seeded])
    if scenario.data.source.looked_at:
        texts += sentences([warning("looked-at")])
    units = {member.card.name: member.card.units for member in federation.roster.training}
    texts += sentences(weak_budget(scenario, units))
    of_mixture = mixing.mixture_warnings(scenario, strategy.bank, strategy.chain_names())
    return (
        *texts,
        *sentences(partition.warnings),
        *map(sentence, federation.roster.left_out),
        *sentences(record.warnings),
        *map(sentence, mixing.optimiser_warnings(scenario)),
        *map(sentence, of_mixture),
    )


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


def _participation_records(
    strategy: PosteriorStrategy, record: RunRecord
) -> tuple[ParticipationRecord, ...]:
    distances = strategy.distances()
    names = [member.card.name for member in strategy.federation.roster.training]
    return tuple(
        ParticipationRecord(
            site=name, statuses=record.participation(name), distance=distances.get(name)
        )
        for name in names
    )


def _same_records(
    baselines: Baselines | None, calibration: Sequence[CalibrationRecord]
) -> Baselines | None:
    """Leave out simpler predictors where the run was measured on other records.

    That happens where a site fell silent.
    """
    if baselines is None:
        return None
    measured_records = {row.site: row.n for row in calibration}
    rows = []
    missing = dict(baselines.missing)
    for row in baselines.rows:
        measured = measured_records.get(row.site, 0)
        if measured == row.n:
            rows.append(row)
        else:
            reason = f"the run measured {measured} of its {row.n} records"
            missing[f"simpler predictors at {row.site}"] = reason
    return Baselines(rows=tuple(rows), missing=missing)


def _recalibration_record(recalibration: Recalibration | None) -> RecalibrationRecord | None:
    if recalibration is None:
        return None
    return RecalibrationRecord(
        method=recalibration.average.method,
        noise=sentence(recalibration.noise) if recalibration.noise else "",
        average=recalibration.average.parameters,
        sites={site: mapping.parameters for site, mapping in recalibration.site_maps.items()},
    )


def _paid_test(site: str, statement: PrivacyStatement) -> ReleaseRecord:
    epsilon = "inf"
    if statement.epsilon is not None:
        epsilon = f"{math.ceil(statement.epsilon * 1000) / 1000:.3f}"
    budget = stated_cost(statement)["budget"]
    spent = f"epsilon {epsilon} of {budget:g} at delta {statement.delta:g}"
    return ReleaseRecord(item=f"test records of {site}: {spent}", how=PAID)


def _releases(
    strategy: PosteriorStrategy, baselines: Baselines | None
) -> tuple[ReleaseRecord, ...]:
    """Return what left the sites, and how it was protected."""
    federation = strategy.federation
    recalibration = strategy.recalibration
    cards = [member.card for member in federation.roster.members]
    released = sorted({HOW_EVALUATION_IS_RELEASED[card.evaluation_release] for card in cards})
    released_exactly = sorted({PUBLIC if how == PUBLIC else NOT_SENT for how in released})
    paid = PAID if federation.scenario.sampler.is_private else "sent without privacy"
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
    if baselines is not None and baselines.rows:
        items["results of simpler predictors"] = (
            "computed from training records without privacy: not covered by epsilon"
        )
    releases = [ReleaseRecord(item=item, how=how) for item, how in items.items()]
    statements = strategy.evaluation.statements
    releases += [_paid_test(site, statement) for site, statement in statements.items()]
    return tuple(releases)
