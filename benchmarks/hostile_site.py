"""What one hostile site of four or eight can do to each rule by five attacks, and if it is named.

python benchmarks/hostile_site.py --out cells.jsonl --sites 4 8 --seeds 1 --rules fald mixture

Through the real server and the real clients, at the noise of the scenarios `stroke-uk` and
`digits`. The hostile site knows its records, the state that the round starts from and what the
server accepts; all but its states is as its honest app wrote it. Each cell is a line of the file
once it is done; what is there is not run again.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from flwr.app import Array, Message
from flwr.clientapp import ClientApp
from sklearn.linear_model import LogisticRegression

from benchmarks.measure import measure_cells, measured_cells
from clients.app import app
from fl_dpbayes.config import Scenario, as_classification, load_scenario, read_site_file
from fl_dpbayes.data import SITES_FOLDER, load_site, plan_sites, prepare_simulation
from fl_dpbayes.engine.inline_engine import InlineGrid, logs_in, task_identity
from fl_dpbayes.models import arrays_to_vector, build_model, vector_to_arrays
from fl_dpbayes.posterior.far_off import LARGEST_RATIO
from fl_dpbayes.protocol import TrainReply, TrainRequest, read_header, without_prefix
from fl_dpbayes.report import stored_summary
from server.check_reply import displacements
from server.federation import run_federation

Floats = npt.NDArray[np.float64]

LETTERS = "abcdefgh"
_UNIFORM = "site_weights='uniform', move_bound='none'"
RULES = {
    "fald": "{rule='fald'}",
    "fald, moves unbounded": "{rule='fald', move_bound='none'}",
    "fald, median": f"{{rule='fald', {_UNIFORM}, robust='median'}}",
    "fald, trimmed mean": f"{{rule='fald', {_UNIFORM}, robust='trimmed-mean', trimmed=1}}",
    "mixture": "{rule='mixture'}",
    "predbayes": (
        "{rule='predbayes', public={kind='synthetic', pattern='PATTERN', count=300}, "
        "iterations=100}"
    ),
    "distillation": (
        "{rule='distillation', public={kind='synthetic', pattern='PATTERN', "
        "count=300}, iterations=100}"
    ),
    "fedavg": "{rule='fedavg'}",
    "fedavg, median": f"{{rule='fedavg', {_UNIFORM}, robust='median'}}",
    "fedavg, trimmed mean": f"{{rule='fedavg', {_UNIFORM}, robust='trimmed-mean', trimmed=1}}",
    "fedbe": "{rule='fedbe'}",
    "consensus-uniform": "{rule='consensus-uniform'}",
    "consensus-diagonal": "{rule='consensus-diagonal'}",
    "product-diagonal": "{rule='product-diagonal'}",
    "fedpa": "{rule='fedpa'}",
}
# Hospitals of `stroke-uk` in the order of their nodes; of eight the hostile one is the second, of
# usual size.
HOSPITALS = ("uk-134", "uk-39", "uk-1", "uk-6", "uk-73", "uk-4", "uk-72", "uk-11")
SMALL_NOISE = ("privacy.epsilon=200", "privacy.coupling=constant", "privacy.temperature=")
PARTITIONS = {"honest": "{kind='iid'}", "skewed": "{kind='dirichlet', alpha=0.5, min_records=60}"}


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        rule: Aggregation rule, a key of `RULES`.
        noise: One of `NOISES`.
        sites: Number of training sites.
        seed: Seed of partition, start and noise, from 0.
        case: What the hostile site does, one of `CASES`.
    """

    rule: str
    noise: str
    sites: int
    seed: int
    case: str

    @property
    def hostile(self) -> str:
        """The name of the site that attacks."""
        return HOSPITALS[1] if self.noise == "stroke-uk" else LETTERS[0]

    @property
    def node(self) -> int:
        """The number of its node, from 1."""
        return 2 if self.noise == "stroke-uk" else 1

    def scenario(self) -> Scenario:
        """The run's scenario."""
        seeds = (f"seed={self.seed + 1}", f"simulation.insecure_seed={self.seed + 1}")
        if self.noise == "stroke-uk":
            left_out = [
                f"sites.{name}=" for name in (*HOSPITALS[self.sites :], "uk-81", "new-zealand-121")
            ]
            rule = RULES[self.rule].replace("PATTERN", "noise")
            return load_scenario(
                "stroke-uk",
                [*left_out, f"aggregation={rule}", "evaluation.baselines=false", *seeds],
            )
        trainers = ",".join(f"{name}={{role='train'}}" for name in LETTERS[: self.sites])
        rule = RULES[self.rule].replace("PATTERN", "strokes")
        noise = SMALL_NOISE if self.noise == "small noise" else ()
        return load_scenario(
            "digits",
            [
                f"sites={{{trainers},held-out={{role='held_out',records=400}}}}",
                f"aggregation={rule}",
                *noise,
                f"partition={PARTITIONS.get(self.case, PARTITIONS['honest'])}",
                *seeds,
            ],
        )


NOISES = ("stroke-uk", "digits", "small noise")

# A rejected reply harms nobody, so attacks stay a little within the bound.
WITHIN = 0.99
# Parameters that do not vary at all are noticed by every rule with precisions.
TRACE = 0.005
FROZEN_NORM = 3.0
QUIET = 0.5
# Where a plan has no bound, an attack goes this far: a thousand times the prior's standard
# deviation.
UNBOUNDED = 1e3


@dataclass(frozen=True)
class View:
    """What a hostile site knows in a round.

    Attributes:
        start: Parameters that the round starts from, shape (d,).
        right: Parameters fitted to its records with their labels, shape (d,).
        wrong: Parameters fitted to its records with wrong labels, shape (d,).
        honest: States of its own honest chain that it would send, shape (m, d).
        farthest: How far from the start each of the m states may be, shape (m,).
    """

    start: Floats
    right: Floats
    wrong: Floats
    honest: Floats
    farthest: Floats


Attack = Callable[[View], Floats]


def relabel(view: View) -> Floats:
    """Go from right to wrong labels as far as is accepted, every round again."""
    return view.start + WITHIN * view.farthest[:, np.newaxis] * _unit(view.wrong - view.right)


def reverse(view: View) -> Floats:
    """Go away from what the records teach, as far as the server accepts."""
    return view.start - WITHIN * view.farthest[:, np.newaxis] * _unit(view.right - view.start)


def frozen(view: View) -> Floats:
    """Go to a model of wrong labels that is too sure, and stay there.

    A chain without spread looks most precise.
    """
    way = FROZEN_NORM * view.wrong - view.start
    lengths = np.minimum(WITHIN * view.farthest, np.linalg.norm(way))
    return view.start + lengths[:, np.newaxis] * _unit(way)


def hidden(view: View) -> Floats:
    """Go as far as an honest chain, by equal steps in every parameter, towards wrong labels.

    Source: Baruch, Baruch and Goldberg 2019, "A little is enough: circumventing defenses for
    distributed learning".
    """
    lengths = np.linalg.norm(view.honest - view.start, axis=1)
    return view.start + lengths[:, np.newaxis] * _unit(np.sign(view.wrong - view.right))


def quiet(view: View) -> Floats:
    """Go half as far as `hidden`, so as not to be told apart from the others."""
    return view.start + QUIET * (hidden(view) - view.start)


ATTACKS: Mapping[str, Attack] = {
    "relabel": relabel,
    "reverse": reverse,
    "frozen": frozen,
    "hidden": hidden,
    "quiet": quiet,
}
CASES = ("honest", *ATTACKS)
# Of each score, whether more (1) or less (-1) of it is harm.
SCORES = {"accuracy": -1, "auroc": -1, "nll": 1}


def with_trace_of_noise(states: Floats, view: View) -> Floats:
    """Add a little of honest noise, so that no parameter is constant."""
    if len(view.honest) == 1:
        return states
    return states + TRACE * (view.honest - view.honest.mean(axis=0))


class HostileGrid(InlineGrid):
    """Nodes of linear models in this process.

    One of them puts an attack's states into its honest app's reply.
    """

    def __init__(
        self, client_app: ClientApp, nodes: int, *, node: int, site_file: Path, attack: Attack
    ) -> None:
        """Let the node of this number, from 1, and site file attack."""
        super().__init__(client_app, nodes)
        self._node = node
        self._site_file = site_file
        self._attack = attack

    def answer(self, message: Message) -> Message:
        """Run the ClientApp, and replace what the hostile site sends."""
        reply = super().answer(message)
        hostile = (
            message.metadata.dst_node_id == self._node and message.metadata.message_type == "train"
        )
        if hostile and not reply.has_error() and "arrays" in reply.content:
            self._spoil(message, reply)
        return reply

    def _spoil(self, message: Message, reply: Message) -> None:
        """Replace the states of an honest reply by those of the attack."""
        arrays = reply.content.array_records["arrays"]
        sent = message.content.array_records["arrays"]
        request = read_header(TrainRequest, message.content.config_records["config"]["record"])
        record = read_header(TrainReply, reply.content.config_records["config"]["record"])
        start = without_prefix("start", {name: array.numpy() for name, array in sent.items()})
        bound = displacements(request, record.privacy.units, start, record.steps)
        farthest = np.full(record.steps, UNBOUNDED) if bound is None else bound[:, 0]
        kept_steps = [
            step for step in range(record.steps) if request.plan.is_kept(record.first_step + step)
        ]
        released = {name: array.numpy() for name, array in arrays.items()}
        samples = without_prefix("samples", released)
        states = [
            {name: array[row] for name, array in samples.items()} for row in range(len(kept_steps))
        ]
        states.append(without_prefix("last/parameters", released))
        module = build_model(request.model, request.task, seed=0)

        def vector_of(state: Mapping[str, npt.NDArray]) -> Floats:
            return arrays_to_vector(state, module).double().numpy()

        right, wrong = self._fitted
        view = View(
            start=vector_of(without_prefix("parameters", start)),
            right=right,
            wrong=wrong,
            honest=np.stack([vector_of(state) for state in states]),
            farthest=farthest[[*kept_steps, record.steps - 1]],
        )
        spoilt = torch.from_numpy(with_trace_of_noise(self._attack(view), view))
        for name, values in vector_to_arrays(spoilt, module).items():
            if kept_steps:
                arrays[f"samples/{name}"] = Array(values[:-1])
            arrays[f"last/parameters/{name}"] = Array(values[-1])

    @cached_property
    def _fitted(self) -> list[Floats]:
        """Fit a model to the right labels of the site's records and one to wrong labels."""
        site = load_site(read_site_file(self._site_file))
        assert site.train is not None
        features = site.train.features
        labels = site.train.labels
        classes = as_classification(site.task.outcome, "a hostile site").classes
        rows = features.reshape(len(labels), -1)
        fits = [
            LogisticRegression(max_iter=1000).fit(rows, (labels + shift) % classes)
            for shift in (0, 1)
        ]
        return [
            np.concatenate([_of_classes(fit.coef_).ravel(), _of_classes(fit.intercept_)])
            for fit in fits
        ]


def measure(cell: Cell) -> dict[str, Any]:
    """Run a federation.

    Returns:
        `accuracy`, `nll` and `auroc` at the held-out hospital; `named`: whether the hostile site is
        told to be far off; `others`: how many honest ones are; `distance`: that of the hostile
        site; `shortened`: how many sites a bound on moves touched; `rejected`: replies of the
        hostile site that the server refused.
    """
    scenario = cell.scenario()
    attack = ATTACKS.get(cell.case)

    def grid_of(site_files: Path) -> InlineGrid:
        if attack is None:
            return InlineGrid(app, len(scenario.sites))
        (site_file,) = site_files.glob(f"*-{cell.hostile}.toml")
        return HostileGrid(
            app, len(scenario.sites), node=cell.node, site_file=site_file, attack=attack
        )

    summary = summary_of(scenario, grid_of)
    (held_out,) = (name for name, site in scenario.sites.items() if site.role == "held_out")
    calibration = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    scores = calibration[held_out, "posterior"]
    participation = {row["site"]: row for row in summary["participation"]}
    far = {site: (row["distance"] or 0.0) > LARGEST_RATIO for site, row in participation.items()}
    shortened = " ".join(text for text in summary["warnings"] if "was shortened" in text)
    return {
        "accuracy": scores["accuracy"],
        "nll": scores["nll"],
        "auroc": scores["auroc"],
        "named": far[cell.hostile],
        "others": sum(far.values()) - far[cell.hostile],
        "distance": participation[cell.hostile]["distance"],
        "shortened": sum(
            any(f"{site}{end}" in shortened for end in " ,)") for site in participation
        ),
        "rejected": participation[cell.hostile]["statuses"].count("REJECTED"),
    }


def summary_of(scenario: Scenario, grid_of: Callable[[Path], InlineGrid]) -> dict[str, Any]:
    """Run a scenario and return its summary.

    Args:
        scenario: What runs.
        grid_of: Makes the grid from the folder of site files.
    """
    with tempfile.TemporaryDirectory(prefix="fl-dpbayes-hostile-") as parent:
        folder = Path(parent) / "run"
        prepare_simulation(scenario, plan_sites(scenario, None), folder)
        site_files = folder / SITES_FOLDER
        with task_identity(), logs_in(folder / "flower.log"):
            run_federation(grid_of(site_files), scenario, folder, str(site_files), report=False)
        return stored_summary(folder)


def _unit(vector: Floats) -> Floats:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def _of_classes(values: Floats) -> Floats:
    """Split a two-class fit's parameters, which are of the second class, between both classes."""
    if len(values) > 1:
        return values
    return np.concatenate([-values, values]) / 2


def worst_attack(rows: pd.DataFrame, score: str) -> str:
    """Name the attack whose mean over seeds is worst, of those that were tried in most seeds."""
    by_attack = rows[rows["case"] != "honest"].groupby("case", sort=False)[score]
    seeds = by_attack.size()
    harm = SCORES[score] * by_attack.mean()
    return str(harm[seeds == seeds.max()].idxmax())


def over_seeds(values: pd.Series) -> str:
    """Show a mean over seeds, and its standard deviation where there are several."""
    spread = f" ± {values.std():.2f}" if len(values) > 1 else ""
    return f"{values.mean():.2f}{spread}"


def honest_and_worst(rows: pd.DataFrame, score: str) -> str:
    """Show what honest sites reach, and what the worst attack leaves of it."""
    worst = worst_attack(rows, score)
    honest = over_seeds(rows.loc[rows["case"] == "honest", score])
    attacked = over_seeds(rows.loc[rows["case"] == worst, score])
    return f"{honest} -> {attacked} ({worst})"


def accuracy_and_names(rows: pd.DataFrame) -> str:
    """Show the accuracy of a case, and in how many seeds the hostile site was named."""
    times = rows["named"].sum()
    named = f", named {times}/{len(rows)}" if times else ""
    return f"{over_seeds(rows['accuracy'])}{named}"


def summary_table(rows: pd.DataFrame, scores: Mapping[str, str]) -> str:
    """Make a table of rules by settings; `scores` names the score at each noise."""
    columns = {
        f"`{noise}`, one of {sites}": {
            rule: honest_and_worst(of_rule, scores[noise])
            for rule, of_rule in of_setting.groupby("rule", sort=False)
        }
        for (noise, sites), of_setting in rows.groupby(["noise", "sites"], sort=False)
    }
    return markdown(pd.DataFrame(columns))


def setting_table(rows: pd.DataFrame, noise: str, sites: int) -> str:
    """Make a table of rules by attacks at one setting."""
    of_setting = rows[(rows["noise"] == noise) & (rows["sites"] == sites)]
    columns = {
        case: {
            rule: accuracy_and_names(of_rule)
            for rule, of_rule in of_case.groupby("rule", sort=False)
        }
        for case, of_case in of_setting.groupby("case", sort=False)
    }
    return markdown(pd.DataFrame(columns)[list(CASES)])


def markdown(table: pd.DataFrame) -> str:
    """Write a table of rules."""
    rows = [("rule", *table.columns)]
    rows += [(f"`{rule}`", *cells) for rule, *cells in table.itertuples()]
    header, *lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([header, "|---" * len(rows[0]) + "|", *lines])


def main() -> None:
    """Measure the cells that are not there yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="one line of JSON for each cell")
    parser.add_argument("--seeds", type=int, default=1, help="repetitions (default: 1)")
    parser.add_argument(
        "--sites", type=int, nargs="+", default=[4, 8], help="training sites (default: 4 8)"
    )
    parser.add_argument("--noises", nargs="+", choices=NOISES, default=["stroke-uk", "digits"])
    parser.add_argument(
        "--rules", nargs="+", choices=RULES, default=list(RULES), help="default: all"
    )
    parser.add_argument(
        "--worst",
        action="store_true",
        help="after the first seed only the attacks that were worst in it by some score",
    )
    chosen = parser.parse_args()
    for seed in range(chosen.seeds):
        cells = []
        for rule, noise, sites in product(chosen.rules, chosen.noises, chosen.sites):
            cases = list(CASES)
            if chosen.worst and seed > 0:
                done = measured_cells(chosen.out)
                setting = {"rule": rule, "noise": noise, "sites": sites, "seed": 0}
                first = done[(done[list(setting)] == pd.Series(setting)).all(axis=1)]
                cases = ["honest", *sorted({worst_attack(first, score) for score in SCORES})]
            cells += [asdict(Cell(rule, noise, sites, seed, case)) for case in cases]
        measure_cells(chosen.out, cells, lambda **fields: measure(Cell(**fields)))
    rows = measured_cells(chosen.out)
    for score in SCORES:
        print(score, summary_table(rows, dict.fromkeys(NOISES, score)), sep="\n\n")
    for noise, sites in rows.groupby(["noise", "sites"], sort=False).groups:
        print(f"{noise}, one of {sites}", setting_table(rows, noise, sites), sep="\n\n")


if __name__ == "__main__":
    main()
