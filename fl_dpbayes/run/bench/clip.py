"""What a private step costs beside a plain one: whole steps of this library, of Opacus and of `torch.func`."""

import json
import platform
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.plan import PrivacyPlan, TrainingPlan
from fl_dpbayes.config.sampler import SGD, ConstantStepSize, FlatPrior
from fl_dpbayes.config.task import CNNModel, LogisticModel, MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.samplers.chain import run_chain
from fl_dpbayes.samplers.minibatch import TrainingRecords
from fl_dpbayes.samplers.planned import PlannedChain

Batches = Callable[[], tuple[torch.Tensor, torch.Tensor]]

RATE, NORM, STEP, MEBIBYTE = 0.25, 1.0, 0.01, 2**20
# Materialised gradients of a whole batch beyond this are not tried: they would not fit beside each other.
_LARGEST_GRADIENTS = 2**31


class _Block(nn.Module):
    """A transformer block over 16 tokens of width 64, four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(64), nn.LayerNorm(64)
        self.mix, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.wide, self.narrow, self.head = nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (N, 10) of tokens (N, 16, 64)."""
        query, key, value = self.mix(self.before(tokens)).unflatten(2, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        mixed = (query @ key.mT / 4).softmax(dim=3) @ value
        tokens = tokens + self.out(mixed.transpose(1, 2).flatten(2))
        tokens = tokens + self.narrow(functional.gelu(self.wide(self.between(tokens))))
        return self.head(tokens.mean(dim=1))


def _group_norm_cnn() -> nn.Module:
    first, second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
    layers = [first, nn.GroupNorm(4, 16), nn.ReLU(), nn.AvgPool2d(2), second, nn.GroupNorm(8, 32), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 10))


def _resnet() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=10, norm_layer=lambda width: nn.GroupNorm(32, width))


@dataclass(frozen=True)
class Case:
    """A model, the shape of its records and the size of its batches."""

    model: Any
    shape: tuple[int, ...]
    batch: int
    classes: int = 10

    def build(self) -> nn.Module:
        """Return the model with random weights; those of a shipped kind start at an output layer of zeros."""
        if callable(self.model):
            return self.model()
        return build_model(self.model, Task(input_shape=self.shape, classes=self.classes), seed=0)


IMAGE = (1, 28, 28)
CASES = {
    "linear 300-10": Case(LogisticModel(), (300,), 256),
    "MLP 784-64-10": Case(MLPModel(hidden=(64,)), (784,), 1024),
    "MLP 784-1000-10": Case(MLPModel(hidden=(1000,)), (784,), 1024),
    "head 1280-128-4": Case(MLPModel(hidden=(128,)), (1280,), 256, 4),
    "CNN of Knolle et al.": Case(CNNModel(channels=(8, 16, 32), hidden=64), IMAGE, 256),
    "CNN 5x5, 16-32": Case(CNNModel(channels=(16, 32), hidden=64, kernel_size=5), IMAGE, 256),
    "transformer block": Case(_Block, (16, 64), 64),
    "CNN with GroupNorm": Case(_group_norm_cnn, IMAGE, 256),
    "ResNet-18 with GroupNorm": Case(_resnet, (3, 32, 32), 32),
}


def bench_clip(console: Console, *, models: str, repeats: int, as_json: bool) -> None:
    """Time whole steps, one after the other in one run, CPU time of one thread, and print them beside a plain SGD step.

    A step draws its batch, and where it is private clips, sums, adds noise and steps. Ours is `run_chain` with Poisson
    batches, padding and float64 sums; the others take batches of one size and float32.

    `models`: what the names of the models to try contain. `repeats`: steps of each. Raises UserError if no model has
    such a name, or Opacus is not installed.
    """
    cases = {name: case for name, case in CASES.items() if models.lower() in name.lower()}
    if not cases:
        raise UserError(f"--models {models!r} names none of them: give a part of one of {', '.join(CASES)}")
    torch.set_num_threads(1)
    rows = []
    for name, case in cases.items():
        with console.status(name):
            times = step_times(case, repeats)
            peaks = [_peak_in_process(name, private) for private in (False, True)]
        ratios = {method: spent / times["plain"] for method, spent in times.items() if method != "plain"}
        rows.append({"model": name, "batch": case.batch, "plain_ms": 1e3 * times["plain"], "ratios": ratios,
                     "mib_beyond_plain": (peaks[1] - peaks[0]) / MEBIBYTE})  # fmt: skip
    machine = {"processor": _processor(), "torch": torch.__version__, "threads": 1, "repeats": repeats}
    if as_json:
        print(json.dumps({"machine": machine, "rows": rows}))
        return
    methods = ["ours", "ghost", "hooks", "functorch", "func.vmap"]
    table = Table(title=f"a whole private step over a plain SGD step, CPU time of one thread, {machine['processor']}")
    for column in ("model", "batch", "plain ms", *methods, "MiB beyond plain"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for row in rows:
        shown = [f"{row['ratios'][method]:.2f}" if method in row["ratios"] else "-" for method in methods]
        table.add_row(
            row["model"], str(row["batch"]), f"{row['plain_ms']:.2f}", *shown, f"{row['mib_beyond_plain']:.0f}"
        )
    console.print(table)


def step_times(case: Case, repeats: int) -> dict[str, float]:
    """Return the median CPU seconds of a step by each method, all interleaved."""
    others = {"plain": _plain(case)} | _peers(case)
    spent: dict[str, list[float]] = defaultdict(list)
    since = 0.0

    def after_step(*_: object) -> None:
        nonlocal since
        spent["ours"].append(time.process_time() - since)
        for name, step in others.items():
            start = time.process_time()
            step()
            spent[name].append(time.process_time() - start)
        since = time.process_time()

    # The first steps build plans and check shapes, and fill caches.
    train(case, repeats + 2, after_step)
    return {name: float(np.median(times[2:])) for name, times in spent.items()}


def train(case: Case, steps: int, on_step: Callable[..., None] | None = None) -> None:
    """Run a private chain on made-up records."""
    sampler = SGD(step_size=ConstantStepSize(initial=STEP), prior=FlatPrior())
    privacy = PrivacyPlan(epsilon=1.0, delta=1e-6, sampling_rate=RATE, clip_norm=NORM)
    plan = TrainingPlan(
        sampler=sampler, privacy=privacy, rounds=1, steps_per_round=steps, burn_in=0, thinning=steps,
        chain_start="broadcast",
    )  # fmt: skip
    units, module = int(case.batch / RATE), case.build()
    features, labels = (values.numpy() for values in _records(case))
    run_chain(
        module, TrainingRecords(features, labels, np.arange(units)), PlannedChain(plan, units, np.ones(steps)),
        range(steps), {"parameters": to_vector(module)}, Streams.from_entropy().of_chain(), on_step,
    )  # fmt: skip


def _records(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    generator, units = torch.Generator().manual_seed(0), int(case.batch / RATE)
    labels = torch.randint(case.classes, (units,), generator=generator)
    return torch.randn((units, *case.shape), generator=generator), labels


def _batches(case: Case) -> Batches:
    features, labels = _records(case)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.randint(len(labels), (case.batch,))
        return features[chosen], labels[chosen]

    return batch


def _plain(case: Case) -> Callable[[], None]:
    module = case.build()
    optimizer = torch.optim.SGD(module.parameters(), lr=STEP)
    return partial(_step, module, optimizer, functional.cross_entropy, _batches(case))


def _step(module: nn.Module, optimizer: Any, loss: Callable[..., Any], batch: Batches) -> None:
    features, labels = batch()
    optimizer.zero_grad()
    loss(module(features), labels).backward()
    optimizer.step()


def _peers(case: Case) -> dict[str, Callable[[], None]]:
    try:
        from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    except ModuleNotFoundError:
        raise UserError("Opacus is not installed: pip install 'fl-dpbayes[bench]'") from None
    warnings.simplefilter("ignore")
    private: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": NORM, "expected_batch_size": case.batch}

    def hooks(**options: bool) -> Callable[[], None]:
        module = GradSampleModule(case.build(), **options)
        optimizer = DPOptimizer(torch.optim.SGD(module.parameters(), lr=STEP), **private)
        return partial(_step, module, optimizer, functional.cross_entropy, _batches(case))

    def ghost() -> Callable[[], None]:
        module = GradSampleModuleFastGradientClipping(case.build(), max_grad_norm=NORM, use_ghost_clipping=True)
        optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(module.parameters(), lr=STEP), **private)
        loss = DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss())
        return partial(_step, module, optimizer, loss, _batches(case))

    size = sum(value.numel() for value in case.build().parameters())
    made = {"ghost": ghost()}
    if 4 * size * case.batch <= _LARGEST_GRADIENTS:
        made |= {"hooks": hooks(), "functorch": hooks(force_functorch=True), "func.vmap": _func_vmap(case)}
    return made


def _func_vmap(case: Case) -> Callable[[], None]:
    module = case.build()
    values = {name: value.detach() for name, value in module.named_parameters()}

    def loss(values: dict[str, torch.Tensor], record: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional_call(module, values, (record[None],)), label[None])

    gradients_of = vmap(grad(loss), in_dims=(None, 0, 0))

    def step(batch: Batches) -> None:
        gradients = gradients_of(values, *batch())
        norms = torch.stack([value.flatten(1).norm(dim=1) for value in gradients.values()]).norm(dim=0)
        factors = (NORM / norms).clamp(max=1.0)
        for name, value in gradients.items():
            noised = torch.tensordot(factors, value, 1) + NORM * torch.randn(value.shape[1:])
            values[name].sub_(noised, alpha=STEP / case.batch)

    return partial(step, _batches(case))


def _peak_in_process(name: str, private: bool) -> int:
    """Return how far the resident memory of a process rises above what records and model take."""
    command = [sys.executable, "-m", "fl_dpbayes.run.bench.clip", name, str(int(private))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"the measured process failed: {done.stderr.strip()[-500:]}")
    return int(done.stdout.splitlines()[-1])


def _peak(case: Case, private: bool) -> int:
    torch.set_num_threads(1)
    # Once, so that libraries are loaded.
    train(Case(LogisticModel(), (4,), 16), 1)
    plain = _plain(case)
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    if private:
        train(case, 5)
    else:
        for _ in range(5):
            plain()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field))


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if sys.platform == "linux" else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    print(_peak(CASES[sys.argv[1]], sys.argv[2] == "1"))
