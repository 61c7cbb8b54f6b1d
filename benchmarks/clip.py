"""What a private step costs beside a plain one.

Compared are whole steps of this library, of Opacus and of `torch.func`.
"""

import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import MEBIBYTE, Record, Sizes, alone, peak_bytes
from fl_dpbayes.config import (
    SGD,
    Classification,
    CNNModel,
    ConstantStepSize,
    FlatPrior,
    LogisticModel,
    MLPModel,
    PrivacyPlan,
    Task,
    TrainingPlan,
)
from fl_dpbayes.models import build_model, to_vector
from fl_dpbayes.privacy import Streams
from fl_dpbayes.samplers import TrainingRecords, run_chain
from fl_dpbayes.schedules import PlannedChain

RATE, NORM, STEP = 0.25, 1.0, 0.01
# Bytes of materialised gradients of a whole batch beyond which peers that need them are not tried.
_LARGEST_GRADIENTS = {"cpu": 2**31, "cuda": 2**34}


class _Block(nn.Module):
    """A transformer block over 16 tokens of width 64, four heads, and a layer of logits."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(64)
        self.mix = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)
        self.between = nn.LayerNorm(64)
        self.wide = nn.Linear(64, 256)
        self.narrow = nn.Linear(256, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            self.mix(self.before(tokens)).unflatten(2, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        )
        mixed = (query @ key.mT / 4).softmax(dim=3) @ value
        tokens = tokens + self.out(mixed.transpose(1, 2).flatten(2))
        tokens = tokens + self.narrow(functional.gelu(self.wide(self.between(tokens))))
        return self.head(tokens.mean(dim=1))


def _group_norm_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 49, 10),
    )


def _resnet() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=10, norm_layer=lambda width: nn.GroupNorm(32, width))


class _Called(nn.Module):
    """An MLP 784-64-10 whose weights are used outside of their layers.

    Only `torch.func` can take it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(784, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(images.flatten(1), self.first.weight, self.first.bias).relu()
        return functional.linear(hidden, self.last.weight, self.last.bias)


@dataclass(frozen=True)
class Case:
    """What is trained in a row of the benchmark.

    Attributes:
        model: A model of the configuration, or a function that builds a module.
        shape: Shape of one record.
        batch: Records of a batch; of private ones the expected number.
        classes: Number of classes.
        device: Where torch computes: `cpu` or `cuda`.
    """

    model: Any
    shape: tuple[int, ...]
    batch: int
    classes: int = 10
    device: str = "cpu"

    def build(self) -> nn.Module:
        """Return the model at its start."""
        task = Task(input_shape=self.shape, outcome=Classification(classes=self.classes))
        module = self.model() if callable(self.model) else build_model(self.model, task, seed=0)
        return module.to(self.device)


IMAGE = (1, 28, 28)
CASES = {
    "linear 300-10": Case(LogisticModel(), (300,), 256),
    "MLP 784-64-10": Case(MLPModel(hidden=(64,)), (784,), 1024),
    "MLP 784-1000-10": Case(MLPModel(hidden=(1000,)), (784,), 1024),
    "MLP 784-1000-10, B 256": Case(MLPModel(hidden=(1000,)), (784,), 256),
    "head 1280-128-4": Case(MLPModel(hidden=(128,)), (1280,), 256, 4),
    "CNN of Knolle et al.": Case(CNNModel(channels=(8, 16, 32), hidden=64), IMAGE, 256),
    "CNN 5x5, 16-32": Case(CNNModel(channels=(16, 32), hidden=64, kernel_size=5), IMAGE, 256),
    "transformer block": Case(_Block, (16, 64), 64),
    "CNN with GroupNorm": Case(_group_norm_cnn, IMAGE, 256),
    "fallback: weights called": Case(_Called, IMAGE, 256),
    "ResNet-18 with GroupNorm": Case(_resnet, (3, 32, 32), 32),
}


def rows(sizes: Sizes) -> Mapping[str, Callable[[], Record]]:
    """Return a row for each model."""
    return {name: partial(compared, case, sizes.repeats) for name, case in CASES.items()}


def compared(case: Case, repeats: int) -> Record:
    """Measure the time and memory of private steps beside plain SGD steps.

    All are whole steps, interleaved, in CPU time on one core: medians of `repeats`. A step draws
    its batch, and where it is private clips, sums, adds noise and steps. Ours is `run_chain` with
    Poisson batches, padding and float64 sums; the others take batches of one size and float32.

    Args:
        case: What is trained.
        repeats: Steps of each method.

    Returns:
        The milliseconds of a plain step, the steps of each method over it, and the MiB beyond it.
    """
    on_one_core()
    steps = {"plain": plain_step(case)} | peers(case)
    return steps_beside(case, steps, repeats) | beyond_plain(case)


def on_one_core() -> None:
    """Compute on one core.

    A thread that draws noise on another core would take CPU time by sharing caches.
    """
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def steps_beside(
    case: Case,
    others: Mapping[str, Callable[[], None]],
    repeats: int,
    *,
    stretch: int = 1,
    now: Callable[[], float] = time.process_time,
) -> Record:
    """Time our whole steps and those of other methods in turn.

    Args:
        case: What is trained.
        others: One step of each other method, by its name; `plain` among them.
        repeats: Stretches of each method.
        stretch: Steps between two looks at the clock.
        now: The clock, in seconds.

    Returns:
        The milliseconds of a plain step, and each method's median over that of plain steps.
    """
    spent = defaultdict[str, list[float]](list)
    since = 0.0

    def after_step(number: int, *rest: object) -> None:
        nonlocal since
        if (number + 1) % stretch:
            return
        spent["ours"].append(now() - since)
        for name, step in others.items():
            start = now()
            for _ in range(stretch):
                step()
            spent[name].append(now() - start)
        since = now()

    # The first stretches build plans and check shapes, and fill caches.
    train(case, stretch * (repeats + 2), after_step)
    seconds = {name: float(np.median(times[2:])) / stretch for name, times in spent.items()}
    plain = seconds.pop("plain")
    ratios = {name: taken / plain for name, taken in seconds.items()}
    return {"batch": case.batch, "plain, ms": 1e3 * plain, **ratios}


def train(case: Case, steps: int, on_step: Callable[..., None] | None = None) -> None:
    """Run a private chain on made-up records.

    Args:
        case: What is trained.
        steps: Steps of the chain.
        on_step: Called after each step with its number.
    """
    sampler = SGD(step_size=ConstantStepSize(initial=STEP), prior=FlatPrior())
    privacy = PrivacyPlan(epsilon=1.0, delta=1e-6, sampling_rate=RATE, clip_norm=NORM)
    plan = TrainingPlan(
        sampler=sampler,
        privacy=privacy,
        rounds=1,
        steps_per_round=steps,
        burn_in=0,
        thinning=steps,
        chain_start="broadcast",
    )
    module = case.build()
    features, labels = (values.cpu().numpy().copy() for values in _records(case))
    # A site's records are read-only too.
    features.flags.writeable = False
    records = TrainingRecords(features, labels, np.arange(len(labels)))
    start = {"parameters": to_vector(module)}
    chain = PlannedChain(plan, len(labels), np.ones(steps))
    streams = Streams.from_entropy().of_chain()
    run_chain(module, records, chain, range(steps), start, streams, on_step)


def _records(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    units = int(case.batch / RATE)
    labels = torch.randint(case.classes, (units,), generator=generator)
    features = torch.randn((units, *case.shape), generator=generator)
    return features.to(case.device), labels.to(case.device)


def plain_step(case: Case) -> Callable[[], None]:
    """Return what does one step of plain SGD."""
    module = case.build()
    return _training_step(
        case, module, torch.optim.SGD(module.parameters(), lr=STEP), functional.cross_entropy
    )


def _training_step(
    case: Case, module: nn.Module, optimizer: Any, loss: Callable[..., Any]
) -> Callable[[], None]:
    features, labels = _records(case)

    def step() -> None:
        chosen = torch.randint(len(labels), (case.batch,), device=case.device)
        optimizer.zero_grad()
        loss(module(features[chosen]), labels[chosen]).backward()
        optimizer.step()

    return step


def peers(case: Case) -> dict[str, Callable[[], None]]:
    """Return what does one private step by each other method that takes the model."""
    warnings.simplefilter("ignore")
    makers = {"ghost": partial(_opacus, case, "ghost")}
    parameters = sum(value.numel() for value in case.build().parameters())
    gradient_bytes = 4 * case.batch * parameters
    if gradient_bytes <= _LARGEST_GRADIENTS[case.device]:
        makers |= {mode: partial(_opacus, case, mode) for mode in ("hooks", "functorch")}
        makers["func.vmap"] = partial(_func_vmap, case)
    steps = {}
    for name, make in makers.items():
        # Opacus cannot take every model (in-place additions, weights called).
        with suppress(RuntimeError, AttributeError, ValueError):
            step = make()
            step()
            steps[name] = step
    return steps


def _opacus(case: Case, mode: str) -> Callable[[], None]:
    module = case.build()
    optimizer = torch.optim.SGD(module.parameters(), lr=STEP)
    private, optimizer, *loss, _ = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(*_records(case)), case.batch),
        noise_multiplier=1.0,
        max_grad_norm=NORM,
        grad_sample_mode=mode,
    )
    return _training_step(case, private, optimizer, *loss or [functional.cross_entropy])


def _func_vmap(case: Case) -> Callable[[], None]:
    module = case.build()
    features, labels = _records(case)
    values = {name: value.detach() for name, value in module.named_parameters()}

    def loss(
        values: dict[str, torch.Tensor], record: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        return functional.cross_entropy(
            functional_call(module, values, (record[None],)), label[None]
        )

    def step() -> None:
        chosen = torch.randint(len(labels), (case.batch,), device=case.device)
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(values, features[chosen], labels[chosen])
        norms = torch.stack([value.flatten(1).norm(dim=1) for value in gradients.values()]).norm(
            dim=0
        )
        factors = (NORM / norms).clamp(max=1.0)
        for name, value in gradients.items():
            noise = torch.randn(value.shape[1:], device=case.device)
            noised = torch.tensordot(factors, value, 1) + NORM * noise
            values[name].sub_(noised, alpha=STEP / case.batch)

    return step


def beyond_plain(case: Case) -> Record:
    """Return how many MiB private steps take beyond plain ones, each in its own process."""
    peaks = [alone(partial(_peak, case, private)) for private in (False, True)]
    return {"MiB beyond plain": (peaks[1] - peaks[0]) / MEBIBYTE}


def _peak(case: Case, private: bool) -> int:
    """Return by how many bytes five steps raise this process's resident memory."""
    torch.set_num_threads(1)
    # Libraries are loaded before the memory is measured.
    train(Case(LogisticModel(), (4,), 16), 1)
    plain_step(Case(LogisticModel(), (4,), 16))()
    # Forgets the peak so far (proc(5)).
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = peak_bytes()
    if private:
        train(case, 5)
    else:
        step = plain_step(case)
        for _ in range(5):
            step()
    return peak_bytes() - before
