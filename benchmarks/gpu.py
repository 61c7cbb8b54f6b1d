"""What a private step costs on a GPU beside a plain one, in time and memory.

Compared are this library, Opacus and `torch.func`.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from benchmarks.clip import CASES, Case, peers, plain_step, steps_beside, train
from benchmarks.measure import MEBIBYTE, Record, Sizes
from fl_dpbayes.errors import UserError
from fl_dpbayes.models.rows import noted_shapes, repeatable
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.samplers.gradients.engine import gradient_engine

BATCHES = (256, 64, 16, 1024)
LARGEST = {"ResNet-18 with GroupNorm": 256}
LEFT_OUT = "MLP 784-1000-10, B 256"
# Steps between two waits for the GPU: a run's steps are not waited for one by one.
STRETCH = 5
STEPS_FOR_MEMORY = 3
DEVICE = "cuda"


def rows(sizes: Sizes) -> Mapping[str, Callable[[], Record]]:
    """Return a row for each batch size and model.

    Args:
        sizes: `repeats` is the number of stretches of five steps.

    Returns:
        The work of each row, by name.

    Raises:
        UserError: No CUDA device is here.
    """
    if not torch.cuda.is_available():
        raise UserError("no CUDA device is here, and this benchmark is of one")
    return {
        f"{name}, batch {batch}": partial(compared, replace(case, batch=batch), sizes.repeats)
        for batch in BATCHES
        for name, case in CASES.items()
        if name != LEFT_OUT and batch <= LARGEST.get(name, max(BATCHES))
    }


def compared(case: Case, repeats: int) -> Record:
    """Measure the time and memory of private steps beside plain SGD steps.

    All are whole steps on data that lies on the GPU. Stretches of five steps, each ended by a wait
    for the GPU, are interleaved and measured in wall time. Everything is computed in float32,
    without TF32. Ours runs as at a site: `run_chain` with Poisson batches, padding, float64 sums,
    noise of a stream cipher, and the algorithms that torch calls deterministic. The others take
    batches of one size, float32, torch's own noise, and whichever algorithms torch chooses.

    Args:
        case: What is trained.
        repeats: Stretches of each method, of which medians are taken.

    Returns:
        The milliseconds of a plain step, the steps of each method over it, the greatest MiB that
        tensors took at a time, records included, and the shape of a pass.
    """
    repeatable(torch.device(DEVICE))
    case = replace(case, device=DEVICE)
    with noted_shapes() as noted:
        train(case, 1)
        _predict(case)
    shapes = {shape.computation: shape for shape in noted}
    shape = shapes["gradients"]
    record: Record = {"MiB ours": _most_mebibytes(lambda: lambda: train(case, STEPS_FOR_MEMORY))}
    torch.use_deterministic_algorithms(False)
    steps = {
        name: _as_torch_chooses(step)
        for name, step in ({"plain": plain_step(case)} | peers(case)).items()
    }
    torch.use_deterministic_algorithms(True)
    record |= steps_beside(case, steps, repeats, stretch=STRETCH, now=_after_all_is_done)
    # Their memory is freed before that of plain steps is measured.
    del steps
    torch.use_deterministic_algorithms(False)
    record["MiB plain"] = _most_mebibytes(lambda: _several(plain_step(case)))
    return record | {
        "book-keeping": float(gradient_engine(case.build(), case.shape).name == "book_keeping"),
        "rows a pass": float(shape.rows),
        "rows wanted": float(shape.wanted),
        "aligned": float(shape.products == "aligned"),
        "separate": float(shape.products == "separate"),
        "rows a prediction": float(shapes["predictions"].rows),
    }


def _predict(case: Case) -> None:
    module = case.build()
    record = np.zeros((1, *case.shape), np.float32)
    sample = {name: value.detach().cpu().numpy()[None] for name, value in module.named_parameters()}
    predict(module, sample, np.ones(1), record, device=DEVICE)


def _as_torch_chooses(step: Callable[[], None]) -> Callable[[], None]:
    """Return a step that takes whichever algorithms torch chooses."""

    def stepped() -> None:
        torch.use_deterministic_algorithms(False)
        step()
        torch.use_deterministic_algorithms(True)

    return stepped


def _after_all_is_done() -> float:
    """Return the wall clock once the GPU has nothing left to do."""
    torch.cuda.synchronize()
    return time.perf_counter()


def _several(step: Callable[[], None]) -> Callable[[], None]:
    def steps() -> None:
        for _ in range(STEPS_FOR_MEMORY):
            step()

    return steps


def _most_mebibytes(make: Callable[[], Callable[[], None]]) -> float:
    """Return by how much making a method and its steps raise what tensors take on the GPU."""
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    make()()
    return (torch.cuda.max_memory_allocated() - before) / MEBIBYTE
