"""What one hostile site of six can do to every rule and robust option, and what the options cost honest runs."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl_dpbayes.config.base import digest
from fl_dpbayes.config.scenario import Scenario, load_scenario
from fl_dpbayes.data.simulation import SITES_FOLDER, plan_sites, prepare_simulation
from fl_dpbayes.privacy.events import read_history
from fl_dpbayes.run.inline_engine import logs_in, task_identity
from fl_dpbayes.run.inline_grid import InlineGrid
from fl_dpbayes.run.reproduce.experiment import Cell, Experiment, Measurement, Metric, Row
from fl_dpbayes.run.reproduce.hostile_site_attacks import ATTACKS
from fl_dpbayes.run.reproduce.hostile_site_grid import HostileGrid

HOSTILE = "a"
SITES = ",".join(f"{name}={{role='train'}}" for name in "abcdef")
NOISES: Mapping[str, list[str]] = {
    "small noise": ["privacy.epsilon=200", "privacy.coupling=constant", "privacy.temperature="],
    "quickstart's noise": [],
}
PARTITIONS: Mapping[str, str] = {"honest": "{kind='iid'}", "skewed": "{kind='dirichlet', alpha=0.5, min_records=60}"}
_UNIFORM = "site_weights='uniform', move_bound='none'"
_PUBLIC = "public={kind='synthetic', pattern='strokes', count=300}, iterations=100"
_ROUNDS = "training={rounds=5, steps_per_round=20, burn_in=40, thinning=10}"
_MANY_SAMPLES = "training={rounds=7, steps_per_round=100, burn_in=40, thinning=1}"
_EVERY_ROUND = "training={rounds=5, steps_per_round=20, burn_in=10, thinning=2}"
_FALD: Mapping[str, str] = {
    "fald": "{rule='fald', move_bound='none'}",
    "fald, moves up to 2": "{rule='fald', move_bound=2}",
    "fald, moves up to 3": "{rule='fald', move_bound=3}",
    "fald, moves up to 5": "{rule='fald', move_bound=5}",
    "fald, median": f"{{rule='fald', {_UNIFORM}, robust='median'}}",
    "fald, trimmed mean": f"{{rule='fald', {_UNIFORM}, robust='trimmed-mean', trimmed=1}}",
    "fald, median, moves up to 2": "{rule='fald', site_weights='uniform', robust='median', move_bound=2}",
    "fald, trimmed mean, moves up to 2": (
        "{rule='fald', site_weights='uniform', robust='trimmed-mean', trimmed=1, move_bound=2}"
    ),
}
# Groups of rules whose sites run the same chains: these are run once, and combined by each rule.
GROUPS: Mapping[str, Mapping[str, str]] = {
    **{name: {name: rule} for name, rule in _FALD.items()},
    "whole prior": {
        "mixture": "{rule='mixture'}",
        "predbayes": f"{{rule='predbayes', {_PUBLIC}}}",
        "distillation": f"{{rule='distillation', {_PUBLIC}}}",
    },
    "shared prior": {
        "fedavg": "{rule='fedavg', move_bound='none'}",
        "fedavg, moves up to 2": "{rule='fedavg', move_bound=2}",
        "fedavg, median": f"{{rule='fedavg', {_UNIFORM}, robust='median'}}",
        "fedavg, trimmed mean": f"{{rule='fedavg', {_UNIFORM}, robust='trimmed-mean', trimmed=1}}",
        "fedbe": "{rule='fedbe'}",
        "consensus-uniform": "{rule='consensus-uniform'}",
        "consensus-diagonal": "{rule='consensus-diagonal'}",
        "product-diagonal": "{rule='product-diagonal'}",
    },
    "fedpa": {"fedpa": "{rule='fedpa'}"},
    "pvi": {"pvi": "{rule='pvi'}"},
    "full": {"consensus-full": "{rule='consensus-full'}", "product-full": "{rule='product-full'}"},
}
TRAINING: Mapping[str, str] = {"pvi": _EVERY_ROUND, "full": _MANY_SAMPLES}


def hostile_cells(seed: int, full: bool) -> list[Cell]:
    """List the cells of a seed: each group of rules at each noise.

    Args:
        seed: of partition, noise and sampling.
        full: with the rules of full precision matrices, which take longest, at the first seed alone.

    Returns:
        The cells; each is one federation run honestly, once under each attack, and with `fald` once on skewed labels.
    """
    return [
        Cell(f"{group}, {noise}", seed, {"noise": noise, "overrides": _overrides(group, noise), "rules": dict(rules)})
        for noise in NOISES
        for group, rules in GROUPS.items()
        if group != "full" or (full and seed == 0)
    ]


def measure_hostile(cell: Cell, data_dir: Path | None) -> Measurement:
    """Run a cell's federations on the real server and the real clients.

    Args:
        cell: one of `hostile_cells`.
        data_dir: not used: the digits come with scikit-learn.

    Returns:
        One row for each of its rules.
    """
    rules: Mapping[str, str] = cell.settings["rules"]
    found: dict[str, dict[str, dict[str, Any]]] = {rule: {} for rule in rules}
    for case in (*PARTITIONS, *ATTACKS):
        if case == "skewed" and len(rules) > 1:
            continue
        for rule, summary in _summaries(cell, case).items():
            found[rule][case] = summary
    return Measurement(tuple(_row(rule, cell.settings["noise"], summaries) for rule, summaries in found.items()))


def _row(rule: str, noise: str, summaries: Mapping[str, dict[str, Any]]) -> Row:
    held_out = {
        case: next(
            row for row in summary["calibration"] if (row["site"], row["predictor"]) == ("held-out", "posterior")
        )
        for case, summary in summaries.items()
    }
    statuses = [row for case in ATTACKS for row in summaries[case]["participation"] if row["site"] == HOSTILE]
    values: dict[str, float | None] = {case: row["accuracy"] for case, row in held_out.items()}
    for metric in ("nll", "rms_debiased"):
        values[f"{metric} honest"] = held_out["honest"][metric]
        values[f"{metric} worst"] = max(held_out[case][metric] for case in ATTACKS)
    for case in (case for case in PARTITIONS if case in summaries):
        values[f"shortened {case}"] = float(len(_shortened(summaries[case])))
    values["rejected"] = float(sum(row["statuses"].count("REJECTED") for row in statuses))
    spent = next(row for row in summaries["honest"]["privacy"] if row["site"] == HOSTILE)
    return Row(rule, noise, values, read_history(spent["history"]), spent["delta"])


def _shortened(summary: Mapping[str, Any]) -> list[str]:
    # One warning may name several sites.
    warned = " ".join(text for text in summary["warnings"] if "was shortened" in text)
    return [site for site in "abcdef" if f"{site} " in warned or f"{site}," in warned or f"{site})" in warned]


def _overrides(group: str, noise: str) -> list[str]:
    return [f"sites={{{SITES},held-out={{role='held_out',records=400}}}}", TRAINING.get(group, _ROUNDS), *NOISES[noise]]


def _summaries(cell: Cell, case: str) -> dict[str, dict[str, Any]]:
    """Run the cell's chains once, and let each of its rules combine and evaluate them; rule -> summary."""
    from server.checkpoint import read_checkpoint, write_checkpoint

    partition = f"partition={PARTITIONS.get(case, PARTITIONS['honest'])}"
    seeds = [f"seed={cell.seed + 1}", f"simulation.insecure_seed={cell.seed + 1}"]
    summaries: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="fl-dpbayes-reproduce-") as parent:
        folder = Path(parent) / "run"
        for rule, section in cell.settings["rules"].items():
            overrides = [*cell.settings["overrides"], f"aggregation={section}", partition, *seeds]
            scenario = load_scenario("quickstart", overrides)
            done = read_checkpoint(folder) if summaries else None
            if done is None:
                prepare_simulation(scenario, plan_sites(scenario, None), folder)
            else:
                # The chains do not depend on the rule, so another one may go on where the first ended.
                write_checkpoint(folder, done[0].model_copy(update={"scenario": digest(scenario)}), done[1])
            _run(scenario, folder, case)
            summaries[rule] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return summaries


def _run(scenario: Scenario, folder: Path, case: str) -> None:
    from clients.app import app
    from server.federation import run_federation

    nodes, site_files = len(scenario.sites), folder / SITES_FOLDER
    with task_identity(), logs_in(folder / "flower.log"):
        hostile = ATTACKS.get(case)
        own = min(site_files.glob("*.toml"))
        grid = InlineGrid(app, nodes) if hostile is None else HostileGrid(app, nodes, own, hostile)
        run_federation(grid, scenario, folder, str(site_files), report=False)


EXPERIMENT = Experiment(
    name="hostile-site",
    title="One hostile site of six: accuracy at a held-out hospital under four attacks",
    source="own simulation: the quickstart's digits over six training sites, through the real server and clients",
    metrics=(
        Metric("honest", "honest", 3),
        *(Metric(name, name, 3) for name in ATTACKS),
        Metric("skewed", "honest, skewed", 3),
        Metric("nll honest", "NLL honest", 3),
        Metric("nll worst", "NLL worst", 3),
        Metric("rms_debiased honest", "RMS honest", 3),
        Metric("rms_debiased worst", "RMS worst", 3),
        Metric("shortened honest", "shortened, honest", 1),
        Metric("shortened skewed", "shortened, skewed", 1),
        Metric("rejected", "rejected", 1),
    ),
    cells=hostile_cells,
    measure=measure_hostile,
    notes=(
        "One training site of six, with a sixth of the records, is hostile. It knows its own records, the state that "
        "the round starts from, and what the server accepts. `relabel` goes as far as the server's bound on distance "
        "allows, every round, from right to wrong labels; `reverse` away from what the records teach; `frozen` to a "
        "model of wrong labels that is too sure, and stays there, so that it looks most precise; `hidden` only as far "
        "as its honest chain goes, equally in every parameter.",
        "`small noise`: epsilon 200, constant noise. `skewed`: the same without an attacker, labels dealt by "
        "Dirichlet(.5). NLL and RMS (debiased root-mean-square calibration error) are the worst of the four attacks. "
        "`shortened` counts sites that a bound on moves touched though nobody was hostile; `rejected` the replies of "
        "the attacker that the server refused, over all attacks.",
        "`moves up to c`: aggregation.move_bound = c, no site moves the average more than c times as far as the "
        "median site; 2 is the default of `fald` and `fedavg`. Rows without it have move_bound = 'none'. Rules of one "
        "group (`mixture` to `distillation`, `fedavg` to `product-diagonal`) combine the same chains.",
    ),
)
