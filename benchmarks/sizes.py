"""What a private step costs at other widths and batch sizes.

Widths are compared with width 16, batch sizes with the fastest mode of Opacus.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from benchmarks.clip import (
    CASES,
    Case,
    on_one_core,
    peers,
    plain_step,
    steps_beside,
    train,
)
from benchmarks.measure import Record, Sizes
from fl_dpbayes.config import LogisticModel, MLPModel
from fl_dpbayes.models import noted_shapes

# Most are no multiples of 4: at these, some makers' processors computed a row differently by where
# it starts in memory.
WIDTHS = (5, 9, 13, 14, 25, 30, 50, 126)
EVEN_WIDTH = 16
BATCHES = (16, 64, 256, 1024)
OPACUS = ("ghost", "hooks", "functorch")
# A larger batch of this model takes minutes.
LARGEST = {"ResNet-18 with GroupNorm": 64}
LEFT_OUT = ("MLP 784-1000-10, B 256", "fallback: weights called")
TURNS = 5


def rows(sizes: Sizes) -> Mapping[str, Callable[[], Record]]:
    """Return a row for each width of two models, and for each model and batch size."""
    widths = {
        f"{name}, width {width}": partial(beside_even_width, case, width, sizes.repeats)
        for name, case in (("logistic", logistic), ("MLP", one_hidden_layer))
        for width in WIDTHS
    }
    batches = {
        f"{name}, batch {batch}": partial(beside_opacus, name, batch, sizes.repeats)
        for name in CASES
        if name not in LEFT_OUT
        for batch in BATCHES
        if batch <= LARGEST.get(name, max(BATCHES))
    }
    return widths | batches


def logistic(width: int) -> Case:
    """Return logistic regression on so many features."""
    return Case(LogisticModel(), (width,), 256, 2)


def one_hidden_layer(width: int) -> Case:
    """Return an MLP of 16 features and so many hidden units."""
    return Case(MLPModel(hidden=(width,)), (16,), 256, 2)


def beside_even_width(case: Callable[[int], Case], width: int, repeats: int) -> Record:
    """Time private steps of two widths in turn.

    Args:
        case: Width -> what is trained.
        width: The width beside 16.
        repeats: Steps of each, five times over.

    Returns:
        The milliseconds of a step, what it takes of one of width 16, and the shape of its passes.
    """
    on_one_core()
    with noted_shapes() as noted:
        train(case(width), 1)
    shape = next(shape for shape in noted if shape.computation == "gradients")
    spent: dict[int, list[float]] = {EVEN_WIDTH: [], width: []}
    for _ in range(TURNS):
        for measured_width, seconds in spent.items():
            seconds += step_seconds(case(measured_width), repeats)
    medians = {
        measured_width: float(np.median(seconds)) for measured_width, seconds in spent.items()
    }
    return {
        "step, ms": 1e3 * medians[width],
        "over width 16": medians[width] / medians[EVEN_WIDTH],
        "rows a pass": shape.rows,
        "aligned": float(shape.products == "aligned"),
        "separate": float(shape.products == "separate"),
    }


def step_seconds(case: Case, repeats: int) -> list[float]:
    """Return the CPU seconds of private steps.

    The first steps are left out, as they check shapes and fill caches.
    """
    ends: list[float] = []
    train(case, repeats + 3, lambda *_: ends.append(time.process_time()))
    return list(np.diff(ends[2:]))


def beside_opacus(name: str, batch: int, repeats: int) -> Record:
    """Time private steps of a model beside plain ones and the fastest mode of Opacus.

    Args:
        name: A key of `CASES`.
        batch: Batch size.
        repeats: Steps of each method.

    Returns:
        As `steps_beside`, with the modes of Opacus whose single step is within a third of the
        fastest, and the rows of a pass.
    """
    on_one_core()
    model = CASES[name]
    case = Case(model.model, model.shape, batch, model.classes)
    tried = {mode: step for mode, step in peers(case).items() if mode in OPACUS}
    seconds = {mode: min(one_step(step) for _ in range(3)) for mode, step in tried.items()}
    least = min(seconds.values(), default=0.0)
    fastest = {mode: step for mode, step in tried.items() if seconds[mode] <= 4 / 3 * least}
    with noted_shapes() as noted:
        record = steps_beside(case, {"plain": plain_step(case)} | fastest, repeats)
    shape = next(shape for shape in noted if shape.computation == "gradients")
    return record | {"rows a pass": shape.rows}


def one_step(step: Callable[[], None]) -> float:
    """Return the CPU seconds of one step."""
    start = time.process_time()
    step()
    return time.process_time() - start
