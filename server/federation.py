"""One whole run on the server: roster, rounds, evaluation, record."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from flwr.app import Array, ArrayRecord
from flwr.serverapp import Grid

from fl_dpbayes.config import Scenario, warning
from fl_dpbayes.data import BASELINES, PARTITION, check_task, run_identifier
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import KEPT, STORE_FILE, RunStore, digest
from fl_dpbayes.models import model_shapes
from fl_dpbayes.posterior import (
    POSTERIOR_FILE,
    far_off_warnings,
    one_sample_warning,
    save_posterior,
)
from fl_dpbayes.report import (
    ROUNDS_FILE,
    sentence,
    write_calibration,
    write_report,
    write_summary,
)
from server.checkpoint import (
    RoundEntry,
    check_run_files,
    known_sites,
    read_rounds,
    server_state,
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
from server.summary import PartitionMeasures, summarise_run

STRATEGIES: dict[str, type[PosteriorStrategy]] = {"fald": FALDStrategy, "fedpa": FedPAStrategy}
# Simulated nodes appear together, so a number of them that has not grown for so long is final.
SETTLED_SECONDS = 2.0
MANY_SITES = 1000


def run_federation(
    grid: Grid, scenario: Scenario, run_folder: Path, simulation_folder: str, *, report: bool = True
) -> None:
    """Run a scenario on the connected nodes and write its run directory.

    Whatever happens after the first round, what was computed until then is written. A run directory
    whose store holds a round is taken up after it: a site that has answered a repeated request
    sends its stored reply.

    Args:
        grid: The connected nodes.
        scenario: What to run.
        run_folder: The run directory.
        simulation_folder: Where virtual sites find their files; empty at real sites.
        report: Whether figures and `report.html` are drawn.

    Raises:
        UserError: Nodes or usable replies are too few, or the folder holds another scenario.
    """
    with _open_store(run_folder) as store:
        _run(grid, scenario, store, simulation_folder, report=report)


def _open_store(run_folder: Path) -> RunStore:
    """Open a run's store, or make that of a run that begins here."""
    names = [path.name for path in run_folder.iterdir()]
    if STORE_FILE in names or ROUNDS_FILE in names:
        return RunStore.open(run_folder)
    return RunStore.make(run_folder)


def _run(
    grid: Grid, scenario: Scenario, store: RunStore, simulation_folder: str, *, report: bool
) -> None:
    run_folder = store.path.parent
    rounds = read_rounds(store)
    checkpoint = rounds[-1].checkpoint if rounds else None
    if checkpoint is not None:
        if checkpoint.scenario != digest(scenario):
            raise UserError(f"{run_folder} holds a run of another scenario: give another folder")
        check_run_files(store)
    ordered_grid = cast(Grid, OrderedGrid(grid))
    record = RunRecord(store, tempered=scenario.sampler.has_temperature)
    record.begin("roster")
    roster = _call_roster(ordered_grid, scenario, simulation_folder, rounds)
    _tell_roster(record, roster, rounds)
    check_task(scenario, roster.task)
    federation = Federation(
        scenario=scenario,
        run=checkpoint.run if checkpoint else run_identifier(scenario),
        roster=roster,
        planned_sites=checkpoint.planned_sites if checkpoint else len(roster.training),
        shapes=model_shapes(scenario.model, roster.task),
        run_folder=run_folder,
        simulation_folder=simulation_folder,
        # The ledgers of a simulation are as new as its run.
        heads_file=None if simulation_folder else run_folder.parent / HEADS_FILE,
    )
    strategy_type = STRATEGIES.get(scenario.aggregation.rule, IndependentChainsStrategy)
    strategy = strategy_type(federation, record)
    if rounds:
        state = server_state(store)
        strategy.restore(rounds)
    else:
        state = strategy.initial_state(0)
        strategy.save(0, state)
    try:
        strategy.start(
            grid=ordered_grid,
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


def _tell_roster(record: RunRecord, roster: Roster, rounds: Sequence[RoundEntry]) -> None:
    """Write the roster to the run's events."""
    if rounds:
        record.events.write("resumed", round=rounds[-1].checkpoint.round)
    sites = [[member.card.name, member.card.role] for member in roster.members]
    left_out = [sentence(warned) for warned in roster.left_out]
    record.events.write("roster", sites=sites, left_out=left_out)


def _call_roster(
    grid: Grid,
    scenario: Scenario,
    simulation_folder: str,
    rounds: Sequence[RoundEntry],
) -> Roster:
    """Wait for the nodes, ask them for their cards, and give a resumed run its roster again."""
    known = known_sites(rounds)
    if not simulation_folder:
        # Real sites were waited for by name, as many as the run starts with.
        node_ids = allowed_nodes(grid, scenario.sites, only_registered=True)
    elif not rounds:
        node_ids = _new_simulated_nodes(grid, scenario)
    else:
        node_ids = _resumed_simulated_nodes(grid, len(known.cards))
    roster = call_roster(grid, node_ids, scenario, simulation_folder)
    if not simulation_folder:
        unlisted = unlisted_nodes(grid, scenario.sites)
        roster = replace(roster, left_out=(*unlisted, *roster.left_out))
        check_enough(roster, scenario)
    if not rounds:
        return roster
    return known.roster_of(
        roster,
        min_sites=scenario.resources.min_sites,
        finished=rounds[-1].checkpoint.participation.finished,
    )


def _new_simulated_nodes(grid: Grid, scenario: Scenario) -> list[int]:
    expected = scenario.least_nodes
    node_ids = connected_nodes(grid, expected, SETTLED_SECONDS)
    if len(node_ids) < expected:
        raise UserError(
            f"{len(node_ids)} nodes are connected but the run waits for {expected}: "
            f'start it with  flwr run . --federation-config "num-supernodes={expected}"  (or use  '
            "fl-dpbayes simulate)"
        )
    return node_ids


def _resumed_simulated_nodes(grid: Grid, expected: int) -> list[int]:
    node_ids = connected_nodes(grid, expected)
    if not node_ids:
        raise UserError(
            f"none of the run's {expected} nodes is connected: start them again, then "
            "resume once more"
        )
    return node_ids


def _write(
    federation: Federation, strategy: PosteriorStrategy, record: RunRecord, *, report: bool
) -> Exception | None:
    """Write what came of a run; return what went wrong with its posterior."""
    folder = federation.run_folder
    problem = _write_posterior(federation, strategy, record)
    if strategy.recalibration:
        record.add_costs("recalibration", strategy.recalibration.statements)
    record.add_costs("evaluation", strategy.evaluation.statements)
    summary = summarise_run(strategy, record, _partition(record.store))
    write_summary(summary, folder)
    write_calibration(summary, folder)
    # The page reads it back; of thousands of sites it is not held twice.
    del summary
    if report:
        write_report(folder)
    return problem


def _write_posterior(
    federation: Federation, strategy: PosteriorStrategy, record: RunRecord
) -> Exception | None:
    """Write the posterior, if there is one, and warn of what it lacks; return what went wrong."""
    scenario = federation.scenario
    posterior = None
    problem = None
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
        one_sample = one_sample_warning(len(posterior.weights), scenario.aggregation.point_name)
        if one_sample:
            record.warn(one_sample)
        save_posterior(
            federation.run_folder / POSTERIOR_FILE,
            posterior,
            model=scenario.model,
            task=federation.roster.task,
            scenario_hash=digest(scenario),
            recalibration=strategy.recalibration.average if strategy.recalibration else None,
        )
    return problem


def _partition(store: RunStore) -> PartitionMeasures:
    """Return what was measured of the sites' data in a simulation."""
    with store.reading():
        partition = dict(store.latest(PARTITION) or {})
        baselines = store.latest(BASELINES)
        if baselines is not None:
            partition["baselines"] = baselines
        return PartitionMeasures.model_validate(partition)
