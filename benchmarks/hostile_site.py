"""What one hostile site of six can do to each rule: accuracy at a held-out hospital under four attacks.

python benchmarks/hostile_site.py --seeds 3 --rules fald mixture

Through the real server and the real clients, on the scenario `digits`. The hostile site has a sixth of the records
and knows them, the state that the round starts from and what the server accepts; all but its states is as its honest
app wrote it. `docs/results/hostile-site` holds three seeds of all rules.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from flwr.app import Array, Message
from flwr.clientapp import ClientApp
from sklearn.linear_model import LogisticRegression

from clients.app import app
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.simulation import SITES_FOLDER, plan_sites, prepare_simulation
from fl_dpbayes.data.site import load_site
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import arrays_to_vector, vector_to_arrays
from fl_dpbayes.protocol.arrays import without_prefix
from fl_dpbayes.protocol.train import TrainReply, TrainRequest
from fl_dpbayes.protocol.wire import read_header
from fl_dpbayes.report.run_files import stored_summary
from fl_dpbayes.run.inline_engine import InlineGrid, logs_in, task_identity
from server.check_reply import displacements
from server.federation import run_federation

Floats = npt.NDArray[np.float64]

HOSTILE = "a"
SITES = ",".join(f"{name}={{role='train'}}" for name in "abcdef")
SMALL_NOISE = ["privacy.epsilon=200", "privacy.coupling=constant", "privacy.temperature="]
NOISES = {"small noise": SMALL_NOISE, "noise of digits": []}
PARTITIONS = {"honest": "{kind='iid'}", "skewed": "{kind='dirichlet', alpha=0.5, min_records=60}"}
_UNIFORM = "site_weights='uniform', move_bound='none'"
_PUBLIC = "public={kind='synthetic', pattern='strokes', count=300}, iterations=100"
RULES = {
    "fald": "{rule='fald', move_bound='none'}",
    "fald, moves up to 2": "{rule='fald', move_bound=2}",
    "fald, moves up to 5": "{rule='fald', move_bound=5}",
    "fald, median": f"{{rule='fald', {_UNIFORM}, robust='median'}}",
    "fald, trimmed mean": f"{{rule='fald', {_UNIFORM}, robust='trimmed-mean', trimmed=1}}",
    "mixture": "{rule='mixture'}",
    "predbayes": f"{{rule='predbayes', {_PUBLIC}}}",
    "distillation": f"{{rule='distillation', {_PUBLIC}}}",
    "fedavg": "{rule='fedavg', move_bound='none'}",
    "fedavg, moves up to 2": "{rule='fedavg', move_bound=2}",
    "fedavg, median": f"{{rule='fedavg', {_UNIFORM}, robust='median'}}",
} | {name: f"{{rule='{name}'}}" for name in (
    "fedbe", "consensus-uniform", "consensus-diagonal", "product-diagonal", "fedpa",
)}  # fmt: skip
TRAINING = "{rounds=5, steps_per_round=20, burn_in=40, thinning=10}"

# A rejected reply harms nobody, so attacks stay a little within the bound.
WITHIN = 0.99
# Parameters that do not vary at all are noticed by every rule with precisions.
TRACE = 0.005
FROZEN_NORM = 3.0
# Where a plan has no bound, an attack goes this far: a thousand times the prior's standard deviation.
UNBOUNDED = 1e3


@dataclass(frozen=True)
class View:
    """What a hostile site knows: d parameters each of `start`, and fitted to its records with right and wrong labels.

    `honest`, (m, d): its own honest chain after each kept step and last. `farthest`, (m,): how far from the start each
    may be.
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
    """Go away from what the records teach as far as is accepted: the opposite of what honest sites do."""
    return view.start - WITHIN * view.farthest[:, np.newaxis] * _unit(view.right - view.start)


def frozen(view: View) -> Floats:
    """Go to a model of wrong labels that is too sure, and stay: a chain without spread looks most precise."""
    way = FROZEN_NORM * view.wrong - view.start
    lengths = np.minimum(WITHIN * view.farthest, np.linalg.norm(way))
    return view.start + lengths[:, np.newaxis] * _unit(way)


def hidden(view: View) -> Floats:
    """Go as far as an honest chain does, equally in every parameter and always towards wrong labels.

    Source: Baruch, Baruch and Goldberg 2019, "A little is enough: circumventing defenses for distributed learning".
    """
    lengths = np.linalg.norm(view.honest - view.start, axis=1)
    return view.start + lengths[:, np.newaxis] * _unit(np.sign(view.wrong - view.right))


ATTACKS: Mapping[str, Attack] = {"relabel": relabel, "reverse": reverse, "frozen": frozen, "hidden": hidden}
CASES = (*PARTITIONS, *ATTACKS)


def with_trace_of_noise(states: Floats, view: View) -> Floats:
    """Add a little of honest noise, so that no parameter is constant."""
    return states + TRACE * (view.honest - view.honest.mean(axis=0) if len(view.honest) > 1 else 0.0)


class HostileGrid(InlineGrid):
    """Nodes of linear models in this process; the first puts an attack's states into its honest app's reply."""

    def __init__(self, client_app: ClientApp, nodes: int, site_file: Path, attack: Attack) -> None:
        """`site_file` is that of the first node."""
        super().__init__(client_app, nodes)
        self._site_file, self._attack = site_file, attack

    def answer(self, message: Message) -> Message:
        """Run the ClientApp, and replace what the hostile site sends."""
        reply = super().answer(message)
        hostile = message.metadata.dst_node_id == 1 and message.metadata.message_type == "train"
        if hostile and not reply.has_error() and "arrays" in reply.content:
            self._spoil(message, reply)
        return reply

    def _spoil(self, message: Message, reply: Message) -> None:
        arrays, sent = (content.array_records["arrays"] for content in (reply.content, message.content))
        request = read_header(TrainRequest, message.content.config_records["config"]["record"])
        record = read_header(TrainReply, reply.content.config_records["config"]["record"])
        start = without_prefix("start", {name: array.numpy() for name, array in sent.items()})
        bound = displacements(request, record.privacy.units, start, record.steps)
        farthest = np.full(record.steps, UNBOUNDED) if bound is None else bound[:, 0]
        kept = [step for step in range(record.steps) if request.plan.is_kept(record.first_step + step)]
        released = {name: array.numpy() for name, array in arrays.items()}
        samples, last = (without_prefix(prefix, released) for prefix in ("samples", "last/parameters"))
        states = [*({name: array[row] for name, array in samples.items()} for row in range(len(kept))), last]
        module = build_model(request.model, request.task, seed=0)
        all_states = (without_prefix("parameters", start), *states)
        began, *honest = (arrays_to_vector(each, module).double().numpy() for each in all_states)
        right, wrong = self._fitted
        view = View(began, right, wrong, np.stack(honest), farthest[[*kept, record.steps - 1]])
        spoilt = torch.from_numpy(with_trace_of_noise(self._attack(view), view))
        for name, values in vector_to_arrays(spoilt, module).items():
            if kept:
                arrays[f"samples/{name}"] = Array(values[:-1])
            arrays[f"last/parameters/{name}"] = Array(values[-1])

    @cached_property
    def _fitted(self) -> list[Floats]:
        """Fit the model of the right labels and that of the wrong ones, without noise, to the site's own records."""
        site = load_site(read_site_file(self._site_file))
        assert site.train is not None
        features, labels, classes = site.train.features, site.train.labels, site.task.classes
        rows = features.reshape(len(labels), -1)
        fits = [LogisticRegression(max_iter=1000).fit(rows, (labels + shift) % classes) for shift in (0, 1)]
        return [np.concatenate([fit.coef_.ravel(), fit.intercept_]) for fit in fits]


def measure(rule: str, noise: str, seed: int, cases: Sequence[str] = CASES) -> dict[str, float]:
    """Run a rule's federation once for each case.

    Returns accuracy and NLL at the held-out hospital by case, how many sites a bound on moves touched though nobody
    was hostile (`shortened`), and how many replies of the attacker were refused (`rejected`).
    """
    values: dict[str, float] = {"rejected": 0.0}
    for case in cases:
        summary = _summary(rule, noise, case, seed)
        (row,) = (row for row in summary["calibration"] if (row["site"], row["predictor"]) == ("held-out", "posterior"))
        values |= {case: row["accuracy"], f"nll {case}": row["nll"]}
        if case in ATTACKS:
            statuses = next(row["statuses"] for row in summary["participation"] if row["site"] == HOSTILE)
            values["rejected"] += statuses.count("REJECTED")
        else:
            # One warning may name several sites.
            warned = " ".join(text for text in summary["warnings"] if "was shortened" in text)
            values[f"shortened {case}"] = float(sum(any(f"{s}{c}" in warned for c in " ,)") for s in "abcdef"))
    return values


def _summary(rule: str, noise: str, case: str, seed: int) -> dict[str, Any]:
    overrides = [
        f"sites={{{SITES},held-out={{role='held_out',records=400}}}}", f"aggregation={RULES[rule]}", *NOISES[noise],
        f"training={TRAINING}", f"partition={PARTITIONS.get(case, PARTITIONS['honest'])}",
        f"seed={seed + 1}", f"simulation.insecure_seed={seed + 1}",
    ]  # fmt: skip
    scenario = load_scenario("digits", overrides)
    with tempfile.TemporaryDirectory(prefix="fl-dpbayes-hostile-") as parent:
        folder = Path(parent) / "run"
        prepare_simulation(scenario, plan_sites(scenario, None), folder)
        nodes, site_files = len(scenario.sites), folder / SITES_FOLDER
        with task_identity(), logs_in(folder / "flower.log"):
            attack, own = ATTACKS.get(case), min(site_files.glob("*.toml"))
            grid = InlineGrid(app, nodes) if attack is None else HostileGrid(app, nodes, own, attack)
            run_federation(grid, scenario, folder, str(site_files), report=False)
        return stored_summary(folder)


def _unit(vector: Floats) -> Floats:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def main() -> None:
    """Print a row for each noise and rule: means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="repetitions (default: 1)")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), help="default: all")
    chosen = parser.parse_args()
    rows = {}
    for noise in NOISES:
        for rule in chosen.rules:
            rows[noise, rule] = pd.DataFrame([measure(rule, noise, seed) for seed in range(chosen.seeds)]).mean()
            print(f"{rule}, {noise}: {rows[noise, rule].round(3).to_dict()}", flush=True)
    print(pd.DataFrame(rows).T.round(3).to_string())


if __name__ == "__main__":
    main()
