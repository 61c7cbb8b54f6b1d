"""One whole run on the server: roster, rounds, evaluation, record."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import cast

from flwr.app import Array, ArrayRecord
from flwr.serverapp import Grid

from fl_dpbayes.config import Scenario, warning
from fl_dpbayes.data import BASELINES_FILE, PARTITION_FILE, check_task, run_identifier
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT, digest
from fl_dpbayes.models import model_shapes
from fl_dpbayes.posterior import (
    POSTERIOR_FILE,
    far_off_warnings,
    one_sample_warning,
    save_posterior,
)
from fl_dpbayes.report import (
    CALIBRATION_COLUMNS,
    calibration_csv_row,
    sentence,
    write_csv,
    write_report,
    write_summary,
)
from server.checkpoint import (
    BEGUN,
    JournaledSites,
    check_run_files,
    prepared_files,
    read_checkpoint,
    read_run_journal,
)
from server.grid import OrderedGrid
from server.ledger_heads import HEADS_FILE
from server.registered_nodes import allowed_nodes, unlisted_nodes
from server.roster import Federation, Roster, call_roster, check_enough, connected_nodes
from server.run_record import RunRecord
from server.strategies.fald import FALDStrategy
from server.strategies.fedpa import FedPAStrategy
from server.strategies.independent_chains import IndependentChainsStrategy
from server.strategies.strategy import PosteriorStrategy
from server.summary import summarise_run

STRATEGIES: dict[str, type[PosteriorStrategy]] = {"fald": FALDStrategy, "fedpa": FedPAStrategy}
# Simulated nodes appear together, so a number of them that has not grown for so long is final.
SETTLED_SECONDS = 2.0
MANY_SITES = 1000


def run_federation(
    grid: Grid, scenario: Scenario, run_folder: Path, simulation_folder: str, *, report: bool = True
) -> None:
    """Run a scenario on the connected nodes and write its run directory.

    Whatever happens after the first round, what was computed until then is written. A run directory
    with a checkpoint is taken up after the round that it holds: a site that has answered a repeated
    request sends its stored reply.

    `report`: whether figures and `report.html` are drawn. Raises UserError if nodes or usable
    replies are too few, or the checkpoint is that of another scenario.
    """
    checkpoint, state = read_checkpoint(run_folder) or (None, {})
    if checkpoint is not None and checkpoint.scenario != digest(scenario):
        raise UserError(f"{run_folder} holds a run of another scenario: give another folder")
    journal, entries = read_run_journal(run_folder, checkpoint)
    if checkpoint is not None:
        check_run_files(run_folder, entries, checkpoint)
    ordered = cast(Grid, OrderedGrid(grid))
    record = RunRecord(run_folder, journal, tempered=scenario.sampler.has_temperature)
    record.begin("roster")
    known = JournaledSites(entries) if checkpoint is not None else None
    finished = () if checkpoint is None else checkpoint.participation.finished
    roster = _roster(ordered, scenario, simulation_folder, known, finished)
    if checkpoint is not None:
        record.events.write("resumed", round=checkpoint.round)
    names = [[member.card.name, member.card.role] for member in roster.members]
    record.events.write("roster", sites=names, left_out=[sentence(one) for one in roster.left_out])
    check_task(scenario, roster.task)
    run, planned = run_identifier(scenario), len(roster.training)
    if checkpoint is not None:
        run, planned = checkpoint.run, checkpoint.planned_sites
    # The ledgers of a simulation are as new as its run.
    heads_file = None if simulation_folder else run_folder.parent / HEADS_FILE
    shapes = model_shapes(scenario.model, roster.task)
    federation = Federation(
        scenario, run, roster, planned, shapes, run_folder, simulation_folder, heads_file
    )
    strategy = STRATEGIES.get(scenario.aggregation.rule, IndependentChainsStrategy)(
        federation, record
    )
    if checkpoint is None:
        state = strategy.initial_state(0)
        record.journal.append(prepared_files(run_folder))
        strategy.save(0, state)
        # From here on sites may have spent budget, and a checkpoint that is not there is one that
        # was lost.
        record.journal.append([{BEGUN: federation.run}])
    else:
        strategy.restore(checkpoint, entries)
    try:
        strategy.start(
            grid=ordered,
            initial_arrays=ArrayRecord({name: Array(array) for name, array in state.items()}),
            num_rounds=strategy.plan.total_rounds,
            timeout=scenario.resources.round_timeout,
        )
    finally:
        record.end_stage()
        if len(roster.members) > MANY_SITES:
            # Simulated sites may live in this process. They are asked no more, and the results of
            # so many need room.
            KEPT.clear()
        problem = _write(federation, strategy, record, report=report)
        record.events.write("written", folder=str(run_folder))
    if problem is not None:
        raise problem


def _roster(
    grid: Grid,
    scenario: Scenario,
    simulation_folder: str,
    known: JournaledSites | None,
    finished: Collection[str],
) -> Roster:
    if not simulation_folder:
        # Real sites were waited for by name, as many as the run starts with.
        node_ids = allowed_nodes(grid, scenario.sites, only_registered=True)
    elif known is None:
        expected = scenario.resources.start_nodes or len(scenario.sites)
        node_ids = connected_nodes(grid, expected, SETTLED_SECONDS)
        if len(node_ids) < expected:
            raise UserError(
                f"{len(node_ids)} nodes are connected but the run waits for {expected}: "
                "start it with  "
                f'flwr run . --federation-config "num-supernodes={expected}"  (or use  '
                "fl-dpbayes simulate)"
            )
    else:
        expected = len(known.cards)
        node_ids = connected_nodes(grid, expected)
        if not node_ids:
            raise UserError(
                f"none of the run's {expected} nodes is connected: start them again, then "
                "resume once more"
            )
    answered = call_roster(grid, node_ids, scenario, simulation_folder)
    if not simulation_folder:
        answered = replace(
            answered, left_out=(*unlisted_nodes(grid, scenario.sites), *answered.left_out)
        )
        check_enough(answered, scenario)
    return (
        answered
        if known is None
        else known.roster_of(answered, scenario.resources.min_sites, finished)
    )


def _write(
    federation: Federation, strategy: PosteriorStrategy, record: RunRecord, *, report: bool
) -> Exception | None:
    folder, scenario = federation.run_folder, federation.scenario
    posterior, problem = None, None
    try:
        posterior = strategy.posterior()
    except Exception as error:
        # The run may already be ending with an error of its own, and what the sites spent is
        # written in any case.
        problem = error
        record.warn(warning("no-posterior", reason=str(error)))
    joined = {member.card.name for member in strategy.federation.roster.members}
    record.warn(*(warning("absent", name) for name in scenario.sites if name not in joined))
    record.warn(*far_off_warnings(strategy.distances()))
    if posterior is not None:
        if found := one_sample_warning(len(posterior.weights), scenario.aggregation.point_name):
            record.warn(found)
        save_posterior(
            folder / POSTERIOR_FILE,
            posterior,
            model=scenario.model,
            task=federation.roster.task,
            scenario_hash=digest(scenario),
            recalibration=strategy.recalibration.average if strategy.recalibration else None,
        )
    partition_file = folder / PARTITION_FILE
    partition = (
        json.loads(partition_file.read_text(encoding="utf-8")) if partition_file.is_file() else {}
    )
    if (folder / BASELINES_FILE).is_file():
        partition["baselines"] = json.loads((folder / BASELINES_FILE).read_text(encoding="utf-8"))
    stages = {"recalibration": strategy.recalibration, "evaluation": strategy.evaluation}
    record.add_costs({name: stage.statements for name, stage in stages.items() if stage})
    summary = summarise_run(strategy, record, partition)
    write_summary(summary, folder)
    write_csv(
        folder / "calibration.csv",
        map(calibration_csv_row, summary.calibration),
        CALIBRATION_COLUMNS,
    )
    # The page reads it back; of thousands of sites it is not held twice.
    del summary
    if report:
        write_report(folder)
    return problem
