"""How fast and how tight the accounting is beside dp-accounting and Opacus.

It also measures what a reply costs in a plan of many noise levels.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial, reduce
from importlib.util import find_spec

import numpy as np

from benchmarks.measure import Record, Sizes
from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy import GaussianEvent, History, pld_epsilon
from fl_dpbayes.privacy.pld.loss_distribution import prefix_epsilon
from fl_dpbayes.privacy.rdp import rdp_epsilon

Method = Callable[[History, float], float]
DELTA = 1e-5
# 1000 subsampled steps each; the 50 are the rounds of the falling-noise setting of the golden
# values.
FEW: History = tuple(GaussianEvent(1.2 * 0.985**round_, 0.01, 20) for round_ in range(50))
MANY: History = tuple(
    GaussianEvent(float(sigma), 0.01, 2) for sigma in np.geomspace(1.2, 0.572, 500)
)
EACH: History = tuple(
    GaussianEvent(float(sigma), 0.01, 1) for sigma in np.geomspace(1.2, 0.572, 1000)
)


def rows(sizes: Sizes) -> Mapping[str, Callable[[], Record]]:
    """Return the rows of the benchmark.

    With 500 levels dp-accounting and Opacus PRV take minutes, so only our methods run there.

    Args:
        sizes: Unused: the histories have fixed lengths.

    Returns:
        The work of each row, by name.

    Raises:
        UserError: dp-accounting is not installed.
    """
    if find_spec("dp_accounting") is None:
        raise UserError("dp-accounting is not installed: pip install 'fl-dpbayes[bench]'")
    ours: dict[str, Method] = {"PLD of fl_dpbayes": pld_epsilon, "RDP of fl_dpbayes": rdp_epsilon}
    peers: dict[str, Method] = {"PLD of dp-accounting": _dp_accounting, "PRV of Opacus": _opacus}
    work: dict[str, Callable[[], Record]] = {}
    for name, method in (ours | peers).items():
        work[f"{name}, {len(FEW)} levels"] = partial(_timed, method, FEW)
    for name, method in ours.items():
        work[f"{name}, {len(MANY)} levels"] = partial(_timed, method, MANY)
    work["a plan of 1000 levels and its replies"] = partial(_replies, EACH)
    return work


def _timed(method: Method, history: History) -> Record:
    start = time.process_time()
    epsilon = method(history, DELTA)
    return {"CPU s": time.process_time() - start, "epsilon": epsilon}


def _replies(plan: History) -> Record:
    """Account for a plan and then for its first 1, 2, ... steps, as a site does at each reply."""
    planned = _timed(pld_epsilon, plan)
    start = time.process_time()
    for step in range(1, len(plan) + 1):
        prefix_epsilon(plan, step, DELTA)
    return {**planned, "ms a reply": 1e3 * (time.process_time() - start) / len(plan)}


def _dp_accounting(history: History, delta: float) -> float:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    steps = (
        from_gaussian_mechanism(
            event.noise_multiplier, sampling_prob=event.sampling_rate
        ).self_compose(event.steps)
        for event in history
    )
    return float(
        reduce(lambda composed, step: composed.compose(step), steps).get_epsilon_for_delta(delta)
    )


def _opacus(history: History, delta: float) -> float:
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [
        (event.noise_multiplier, event.sampling_rate, event.steps) for event in history
    ]
    return float(accountant.get_epsilon(delta))
