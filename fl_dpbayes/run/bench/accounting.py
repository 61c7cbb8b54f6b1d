"""How fast and how tight the accounting is beside dp-accounting and Opacus, timed in one run."""

import time
import warnings
from collections.abc import Callable
from functools import reduce

import numpy as np
from rich.console import Console
from rich.table import Table

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.privacy.events import GaussianEvent, History
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.privacy.rdp import rdp_epsilon

DELTA = 1e-5
# 1000 subsampled steps each; the 50 are the rounds of the falling-noise setting of the golden values.
FEW: History = tuple(GaussianEvent(1.2 * 0.985**round_, 0.01, 20) for round_ in range(50))
MANY: History = tuple(GaussianEvent(float(sigma), 0.01, 2) for sigma in np.geomspace(1.2, 0.572, 500))


def bench_accounting(console: Console) -> None:
    """Time the accounting of 50 and 500 distinct noise levels, and print ratios and epsilons.

    With 500 dp-accounting and Opacus PRV take minutes. Raises UserError if dp-accounting is not installed.
    """
    try:
        import dp_accounting.pld  # noqa: F401
    except ModuleNotFoundError:
        raise UserError("dp-accounting is not installed: pip install 'fl-dpbayes[bench]'") from None
    table = Table(title=f"accounting 1000 steps, q = 0.01, delta = {DELTA:g}, one run on this machine")
    for name in ("levels", "method", "seconds", "times ours", "epsilon"):
        table.add_column(name, justify="left" if name == "method" else "right")
    ours: dict[str, Callable[[History], float]] = {
        "PLD of fl_dpbayes": lambda history: pld_epsilon(history, DELTA),
        "RDP of fl_dpbayes": lambda history: rdp_epsilon(history, DELTA),
    }
    others = {"PLD of dp-accounting": _dp_accounting, "PRV of Opacus": _opacus}
    for history, methods in ((FEW, ours | others), (MANY, ours)):
        first = 0.0
        for name, method in methods.items():
            with console.status(f"{name}, {len(history)} levels"):
                start = time.perf_counter()
                epsilon = method(history)
                seconds = time.perf_counter() - start
            first = first or seconds
            table.add_row(str(len(history)), name, f"{seconds:.3f}", f"{seconds / first:.1f}", f"{epsilon:.5f}")
    console.print(table)


def _dp_accounting(history: History) -> float:
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    steps = (
        from_gaussian_mechanism(event.noise_multiplier, sampling_prob=event.sampling_rate).self_compose(event.steps)
        for event in history
    )
    return float(reduce(lambda composed, step: composed.compose(step), steps).get_epsilon_for_delta(DELTA))


def _opacus(history: History) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant

        accountant = PRVAccountant()
        accountant.history = [(event.noise_multiplier, event.sampling_rate, event.steps) for event in history]
        return float(accountant.get_epsilon(DELTA))
