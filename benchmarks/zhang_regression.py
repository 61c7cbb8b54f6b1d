"""Private and plain Bayesian regression with noise that grows with x: Zhang et al., table 3.

python benchmarks/zhang_regression.py --to zhang-regression.csv

No federation: one chain on 250 synthetic records, 20 simulations. The paper's delta is 1/250,
which sites refuse, so epsilon is stated at 1e-3 and at 1/n beside it; its BBP is trained on targets
divided by their standard deviation, so hold its 1.276 and .562 against `over variance`.
`docs/results/zhang-regression` holds the published table.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy.stats import binom
from torch import nn
from torch.func import functional_call

from fl_dpbayes.config import Classification, MLPModel, Task, TrainingPlan
from fl_dpbayes.models import build_model, to_vector, vector_to_arrays
from fl_dpbayes.privacy import Streams, pld_epsilon, solve_plan
from fl_dpbayes.samplers import TrainingRecords, initial_vectors, run_chain
from fl_dpbayes.samplers.gradients.loss import summed_gaussian_negative_log_likelihood
from fl_dpbayes.schedules import PlannedChain

Floats = npt.NDArray[np.float64]

SIMULATIONS, STEPS, BURN_IN = 20, 200, 100
DELTA, PAPER_DELTA, NOISE_MULTIPLIER = 1e-3, 1 / 250, 10.0
POINTS, TRAINED, TESTED, JITTER = 400, 250, 250, 1e-9
NORMAL_QUANTILE = 1.959964
DP, PLAIN = "DP", "non-private"
PAPER = {
    ("SGLD", DP): 0.510,
    ("BBP", DP): 1.276,
    ("MC dropout", DP): 0.682,
    ("SGLD", PLAIN): 0.523,
    ("BBP", PLAIN): 0.562,
    ("MC dropout", PLAIN): 0.591,
}
PAPER_EPSILON = 4.21


@dataclass(frozen=True)
class Setting:
    """What one method is trained with.

    Attributes:
        hidden: Widths of the hidden layers.
        sampler: The plan's section `sampler`.
        privacy: The plan's section `privacy`.
    """

    hidden: list[int]
    sampler: dict[str, Any]
    privacy: dict[str, Any]


def _sampler(kind: str, step: float, prior_scale: float, **settings: float) -> dict[str, Any]:
    step_size = {"kind": "constant", "initial": step}
    return {
        "kind": kind,
        "step_size": step_size,
        "prior": {"kind": "gaussian", "scale": prior_scale},
        **settings,
    }


def _private(clip_norm: float, **coupling: Any) -> dict[str, Any]:
    noise = coupling or {"noise_multiplier": NOISE_MULTIPLIER}
    # The noise is given, so the budget decides nothing.
    return {
        "epsilon": 100.0,
        "delta": DELTA,
        "clip_norm": clip_norm,
        "sampling_rate": 1.0,
        **noise,
    }


def _plain(**settings: float) -> dict[str, Any]:
    return {"sampling_rate": 1.0, **settings}


# The authors' public notebook, in this project's convention: learning rate 2.5e-4 on half the
# summed loss, weight decay 50, clip norm 800 on gradients that Opacus had multiplied by n = 250,
# the noise of sigma 10 and on top of it Langevin noise: together at temperature 1.064. All else was
# chosen by the median test error of the last iterate on other seeds.
_AUTHORS = _sampler("dp-sgld", 2.5e-4 / 2 * 250, 50**-0.5)
_AUTHORS_CLIP = 800 / 250
_BOTH_TEMPERATURE = 1.064
SETTINGS: Mapping[tuple[str, str], Setting] = {
    ("SGLD", PLAIN): Setting(
        [200, 200], _sampler("sgld", 0.003, 50**-0.5), _plain(temperature=1.0)
    ),
    ("SGLD", DP): Setting([200], _sampler("dp-sgld", 0.3, 1.0), _private(0.3)),
    ("SGLD", "DP, authors' constants"): Setting([200, 200], _AUTHORS, _private(_AUTHORS_CLIP)),
    ("SGLD", "DP, both noises"): Setting(
        [200, 200],
        _AUTHORS,
        _private(_AUTHORS_CLIP, coupling="langevin", temperature=_BOTH_TEMPERATURE),
    ),
    ("BBP", PLAIN): Setting([200], _sampler("bbp", 0.0003, 1.0, draws=10), _plain()),
    ("BBP", DP): Setting([200], _sampler("dp-bbp", 0.5, 1.0, draws=10), _private(0.3)),
    ("MC dropout", PLAIN): Setting([200], _sampler("mc-dropout", 0.003, 10.0, rate=0.5), _plain()),
    ("MC dropout", DP): Setting(
        [200], _sampler("dp-mc-dropout", 0.1, 1.0, rate=0.5), _private(0.5)
    ),
    ("SGD", "clip only"): Setting([200], _sampler("sgd", 0.3, 10.0), _plain(clip_norm=0.3)),
    ("SGD", PLAIN): Setting([200], _sampler("sgd", 0.0003, 10.0), _plain()),
    ("SGD", DP): Setting([200], _sampler("dp-sgd", 0.3, 10.0), _private(0.3)),
}


@dataclass(frozen=True)
class Simulation:
    """Records of one simulation.

    Attributes:
        x: Training inputs in ascending order, shape (250, 1).
        y: Training targets, shape (250,).
        function: Training targets without noise, shape (250,).
        test_x: Fresh inputs, shape (250, 1).
        test_y: Their targets, shape (250,).
        test_function: Their targets without noise, shape (250,).
    """

    x: npt.NDArray[np.float32]
    y: npt.NDArray[np.float32]
    function: Floats
    test_x: npt.NDArray[np.float32]
    test_y: Floats
    test_function: Floats


def draw_simulation(generator: np.random.Generator) -> Simulation:
    """Draw a function and noisy observations of it.

    400 x ~ U(-3, 3), f ~ GP(0, exp(-(x - x')^2 / 2)), y = f(x) + .3 |x + 2| xi, xi ~ N(0, 1), minus
    the mean of the 400 targets; the 250 in the middle by x are for training. The test records are
    fresh inputs between the outermost training inputs, on the same function.

    Source: Zhang et al., section 5.2, and the authors' public notebooks for the 250 in the middle.
    """
    x = np.sort(generator.uniform(-3.0, 3.0, POINTS))
    middle = slice((POINTS - TRAINED) // 2, (POINTS + TRAINED) // 2)
    test = generator.uniform(x[middle][0], x[middle][-1], TESTED)
    inputs = np.concatenate([x, test])
    covariance = np.exp(-0.5 * np.subtract.outer(inputs, inputs) ** 2) + JITTER * np.eye(
        len(inputs)
    )
    function = np.linalg.cholesky(covariance) @ generator.standard_normal(len(inputs))
    targets = function + 0.3 * np.abs(inputs + 2.0) * generator.standard_normal(len(inputs))
    centre = targets[:POINTS].mean()
    function, targets = function - centre, targets - centre
    return Simulation(
        x=x[middle, None].astype(np.float32),
        y=targets[middle].astype(np.float32),
        function=function[middle],
        test_x=test[:, None].astype(np.float32),
        test_y=targets[POINTS:],
        test_function=function[POINTS:],
    )


def output_draws(
    module: nn.Module, samples: Mapping[str, npt.NDArray], x: npt.NDArray[np.float32]
) -> Floats:
    """Return mean and log variance under each of M samples, shape (M, N, 2)."""
    draws = []
    for index in range(len(next(iter(samples.values())))):
        values = {name: torch.tensor(array[index]) for name, array in samples.items()}
        with torch.no_grad():
            draws.append(functional_call(module, values, (torch.tensor(x),)).double().numpy())
    return np.stack(draws)


def predicted(draws: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Average M Gaussian predictions.

    Var(y | x) = E[Var(y | x, w)] + Var(E[y | x, w]).

    Args:
        draws: Mean and log variance under each sample, shape (M, N, 2).
        weights: Weights of the samples, shape (M,).

    Returns:
        E[y | x] and Var(y | x), each of shape (N,).

    Source: Depeweg et al. 2018, "Decomposition of uncertainty in Bayesian deep learning", section
    3.
    """
    shares = weights / weights.sum()
    means = draws[..., 0]
    variances = np.exp(draws[..., 1])
    mean = shares @ means
    return mean, shares @ variances + shares @ (means - mean) ** 2


def measure(method: str, setting: str, seed: int, simulations: int = SIMULATIONS) -> pd.DataFrame:
    """Train on every simulation of a seed.

    All methods share a seed's simulations.

    Args:
        method: Method, the first part of a key of `SETTINGS`.
        setting: Setting, its second part.
        seed: Seed of data and chains.
        simulations: Number of simulations.

    Returns:
        A row for each simulation.
    """
    values = []
    for run in range(simulations):
        data = draw_simulation(
            Streams.from_insecure_seed(seed, f"zhang-regression data {run}").generator("data")
        )
        streams = Streams.from_insecure_seed(seed, f"zhang-regression {method}, {setting} {run}")
        values.append(_trained(method, setting, run, data, streams))
    return pd.DataFrame(values)


def median_interval(values: npt.ArrayLike) -> tuple[float, float]:
    """Return an interval that holds the median of the values' law with probability >= .95.

        [x_(j), x_(n + 1 - j)],  j the largest with P(Binomial(n, 1/2) < j) <= .025

    It holds for every continuous law. Both ends are undefined for fewer than 6 values.

    Args:
        values: Independent draws, shape (n,).
    """
    ordered = np.sort(np.asarray(values, float))
    rank = int(binom.ppf(0.025, len(ordered), 0.5))
    if rank == 0:
        return math.nan, math.nan
    return float(ordered[rank - 1]), float(ordered[-rank])


def table_row(values: pd.DataFrame) -> pd.Series:
    """Take medians over simulations, with the interval of the training error's median."""
    row = values.median()
    low, high = median_interval(values["train MSE"])
    position = list(row.index).index("train MSE") + 1
    interval = pd.Series({"low": low, "high": high})
    return pd.concat([row.iloc[:position], interval, row.iloc[position:]])


def _trained(
    method: str, setting: str, run: int, data: Simulation, streams: Streams
) -> dict[str, float]:
    settings = SETTINGS[method, setting]
    # The two outputs are the mean and the log variance.
    task = Task(input_shape=(1,), outcome=Classification(classes=2))
    module = build_model(MLPModel(hidden=tuple(settings.hidden)), task, seed=run)
    plan = TrainingPlan.model_validate(
        {
            "rounds": 1,
            "steps_per_round": STEPS,
            "burn_in": BURN_IN,
            "thinning": 1,
            "sampler": settings.sampler,
            "privacy": settings.privacy,
            "chain_start": "broadcast",
        }
    )
    solved = solve_plan(plan, len(data.x))
    records = TrainingRecords(
        data.x, data.y, np.arange(len(data.x)), summed_gaussian_negative_log_likelihood
    )
    chain = PlannedChain(plan, len(data.x), solved.noise_multipliers)
    start = initial_vectors(plan.sampler, to_vector(module))
    result = run_chain(module, records, chain, range(STEPS), start, streams.of_chain())
    arrays = vector_to_arrays(torch.from_numpy(result.samples), module)
    train, test = (output_draws(module, arrays, x) for x in (data.x, data.test_x))
    mean, variance = predicted(test, np.array(result.sample_weights))
    covered = np.abs(data.test_y - mean) <= NORMAL_QUANTILE * np.sqrt(variance)
    private = plan.sampler.is_private
    error = _mean_squared_error(train[-1, :, 0], data.y)
    epsilons = {"epsilon": DELTA, "at 1/n": PAPER_DELTA}
    return {
        "train MSE": error,
        "over variance": error / float(np.var(data.y)),
        "test MSE": _mean_squared_error(test[-1, :, 0], data.test_y),
        "posterior mean's": _mean_squared_error(mean, data.test_y),
        "in 95% band": float(covered.mean()),
        **{
            name: pld_epsilon(solved.history, at) if private else math.inf
            for name, at in epsilons.items()
        },
    }


def _mean_squared_error(predictions: npt.NDArray, targets: npt.NDArray) -> float:
    return float(np.mean((predictions - targets) ** 2))


def main() -> None:
    """Print medians with the paper's training error, by method and setting."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of data and chains (default: 0)")
    parser.add_argument("--only", default="", help="methods whose names contain this; default: all")
    parser.add_argument(
        "--to", type=Path, help="CSV file of all simulations; methods that it holds are not run"
    )
    asked = parser.parse_args()
    rows = {}
    for key in SETTINGS:
        if asked.only in ", ".join(key):
            rows[key] = table_row(_kept_or_measured(key, asked.seed, asked.to))
    table = pd.DataFrame(rows).T.round(3)
    table["paper's train MSE"] = pd.Series(PAPER)
    print(
        table.to_string(),
        "\nlow, high: 95 % interval of the median training error, by order statistics."
        f"\nThe paper's private rows are at epsilon {PAPER_EPSILON} and delta 1/n, by GDP.",
    )


def _kept_or_measured(key: tuple[str, str], seed: int, file: Path | None) -> pd.DataFrame:
    labels = {"method": key[0], "setting": key[1], "seed": seed}
    kept = pd.read_csv(file) if file and file.is_file() else pd.DataFrame(columns=list(labels))
    own = kept[(kept[list(labels)] == pd.Series(labels)).all(axis=1)]
    if own.empty:
        own = measure(*key, seed).assign(**labels)
        if file:
            pd.concat([kept, own] if len(kept) else [own]).to_csv(file, index=False)
    return own.drop(columns=list(labels))


if __name__ == "__main__":
    main()
