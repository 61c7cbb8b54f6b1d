"""Time and accuracy of federated DP MNIST beside Opacus with Flower's FedAvg, at equal epsilon.

Both run in one process on Flower's messages, without Ray: the same sites, records, model, batches,
noise and plan.
"""

import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import MEBIBYTE, Record, Sizes, peak_bytes
from benchmarks.simulation import simulated
from fl_dpbayes.calibration import from_batch
from fl_dpbayes.calibration.summarise import summarise
from fl_dpbayes.config import Scenario, load_scenario, read_site_file, site_plan
from fl_dpbayes.config.scenario import scenario_folder
from fl_dpbayes.data import Site, SiteSplit, load_site, plan_sites, prepare_simulation
from fl_dpbayes.engine.inline_engine import InlineGrid, task_identity
from fl_dpbayes.models import build_model
from fl_dpbayes.privacy import GaussianEvent, pld_epsilon, solve_plan
from fl_dpbayes.report import stored_summary

# Step sizes tried in deal 0. The most accurate one on the training sites' own test records serves
# the deals after it.
TRIED = (0.5, 1.0, 2.0, 4.0)
CHOSEN = {"ours": 2.0, "Opacus and FedAvg": 2.0}
SCORES = ("accuracy", "nll", "ece")
Part = tuple[torch.Tensor, torch.Tensor]


def rows(sizes: Sizes) -> Mapping[str, Callable[[], Record]]:
    """Return a row for each step size tried, and for each seed of deal, start and noise.

    Args:
        sizes: `repeats` is the number of seeds; there are at most 20.

    Returns:
        The work of each row, by name.
    """
    work = {"ours": ours, "Opacus and FedAvg": with_opacus}
    tried = {
        f"{name}, tried {step:g}": partial(run, step, 0)
        for name, run in work.items()
        for step in TRIED
    }
    seeds = [(name, seed) for seed in range(1, min(sizes.repeats, 20) + 1) for name in work]
    return tried | {
        f"{name}, seed {seed}": partial(work[name], CHOSEN[name], seed) for name, seed in seeds
    }


def federation(step: float, seed: int) -> Scenario:
    """Return the federation of a step size and a seed."""
    file = scenario_folder() / "bench" / "mnist.toml"
    return load_scenario(str(file), [f"sampler.step_size.initial={step}", f"seed={seed}"])


def ours(step: float, seed: int) -> Record:
    """Run the federation by this library.

    `test` scores are those of the last state, which is what FedAvg returns; `averaged` ones are
    those of the chain's samples.

    Args:
        step: Step size.
        seed: Seed of deal, start and noise.

    Returns:
        Costs as `simulated` returns them, scores, and the largest epsilon of a site.
    """
    torch.set_num_threads(1)
    record = simulated(partial(federation, step, seed), "inline", _results)
    return record | {"wall s": record["prepare, s"] + record["run, s"]}


def _results(folder: Path) -> Record:
    summary = stored_summary(folder)
    calibration = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    rows_by_part = {
        "validation": calibration["pooled:train", "last"],
        "test": calibration["official", "last"],
        "averaged": calibration["official", "posterior"],
    }
    scores = {
        f"{part} {score}": row[score] for part, row in rows_by_part.items() for score in SCORES
    }
    return scores | {"epsilon": max(site["epsilon"] for site in summary["privacy"])}


def with_opacus(step: float, seed: int) -> Record:
    """Run the federation by Opacus's ghost clipping inside Flower's FedAvg.

    The noise multiplier is the one that this library solves for.

    Args:
        step: Step size.
        seed: Seed of deal, start and noise.

    Returns:
        Costs, scores, and the largest epsilon of a site.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    start = time.perf_counter()
    scenario = federation(step, seed)
    ends = list[tuple[float, float]]()
    spent = defaultdict[int, list[GaussianEvent]](list)
    with tempfile.TemporaryDirectory() as folder:
        site_files = prepare_simulation(scenario, plan_sites(scenario, None), Path(folder))
        sites = [load_site(read_site_file(path)) for path in site_files]
    *trained, held_out = sites
    rounds = scenario.training.rounds
    noise = float(
        solve_plan(site_plan(scenario, len(trained)), trained[0].units).noise_multipliers[0]
    )
    module = build_model(scenario.model, held_out.task, scenario.seed)
    with task_identity():
        app = _client_app(
            module, [_tensors(site.train) for site in trained], scenario, noise, spent
        )
        result = FedAvg(fraction_evaluate=0.0).start(
            InlineGrid(app, len(trained)),
            ArrayRecord(module.state_dict()),
            rounds,
            evaluate_fn=lambda *_: ends.append((time.perf_counter(), time.process_time())),
        )
    module.load_state_dict(result.arrays.to_torch_state_dict())
    wall, cpu = np.median(np.diff(ends, axis=0), axis=0)
    epsilons = [pld_epsilon(tuple(history), scenario.privacy.delta) for history in spent.values()]
    return {
        **_scores("validation", module, *trained),
        **_scores("test", module, held_out),
        "epsilon": max(epsilons),
        "median round, s": float(wall),
        "median round, CPU s": float(cpu),
        "wall s": time.perf_counter() - start,
        "CPU s": time.process_time(),
        "peak, MiB": peak_bytes() / MEBIBYTE,
    }


def _client_app(
    module: nn.Module,
    sites: Sequence[Part],
    scenario: Scenario,
    noise: float,
    spent: dict[int, list[GaussianEvent]],
) -> ClientApp:
    """Return an app that trains as Opacus's users do.

    `spent` takes each node's steps as Opacus counts them.
    """
    app = ClientApp()
    plan = scenario.privacy

    @app.train()
    def train(message: Message, context: Context) -> Message:
        features, labels = sites[int(context.node_config["partition-id"])]
        module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        loader = DataLoader(
            TensorDataset(features, labels), math.ceil(plan.sampling_rate * len(labels))
        )
        engine = PrivacyEngine()
        private, optimizer, loss, loader = engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), scenario.sampler.step_size.initial),
            data_loader=loader,
            noise_multiplier=noise,
            max_grad_norm=plan.clip_norm,
            grad_sample_mode="ghost",
        )
        # Its Poisson batches, taken out of the tensors at once: record by record, as a DataLoader
        # does it, is slower.
        for batch in loader.batch_sampler:
            optimizer.zero_grad()
            loss(private(features[batch]), labels[batch]).backward()
            optimizer.step()
        private.cleanup()
        spent[context.node_id] += [GaussianEvent(*event) for event in engine.accountant.history]
        size = MetricRecord({"num-examples": len(labels)})
        state = ArrayRecord(module.state_dict())
        return Message(RecordDict({"size": size, "arrays": state}), reply_to=message)

    return app


def _tensors(part: SiteSplit | None) -> Part:
    assert part is not None
    return torch.tensor(part.features), torch.tensor(part.labels)


def _scores(name: str, module: nn.Module, *sites: Site) -> Record:
    features, labels = map(torch.cat, zip(*(_tensors(site.test) for site in sites), strict=True))
    with torch.no_grad():
        probabilities = module(features).double().softmax(dim=1).numpy()
    values = summarise(
        from_batch(probabilities, labels.numpy()), np.random.default_rng(0)
    ).model_dump()
    return {f"{name} {metric}": values[metric] for metric in SCORES}
