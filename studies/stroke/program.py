"""Kept runs of the program beside draws of the noise by NumPy, on the same splits."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from fl_dpbayes.config import GaussianPrior, site_plan
from fl_dpbayes.files import RunStore
from fl_dpbayes.posterior import (
    HOSPITALS,
    POOLED_ROUNDS,
    PooledRounds,
    PosteriorBank,
    log_odds_means,
    site_means,
    with_intercept,
)
from studies.known_hospitals.rounds import clipped_sums, hospital_weights, planned_noises
from studies.stroke.comparison import trains_all
from studies.stroke.federation import Federation, read_kept_run, training_patients
from studies.stroke.rivals import Split, losses


def federation_figures(federation: Federation, split: Split) -> dict[str, float]:
    """Return what is compared of a federation in which all hospitals train.

    Args:
        federation: The federation.
        split: Its patients.

    Returns:
        Figure -> value: log loss a test patient and AUROC, spreads in log odds, and expected rates
        of new hospitals with the widths of their 90 % intervals, over the declared population.
    """
    labels = split.test.labels
    of_levels = federation.hierarchical(split.test)
    of_one = federation.one_model(split.test.features)
    figures = {
        "log loss, a level for each hospital": losses(of_levels, labels).mean(),
        "AUROC, a level for each hospital": roc_auc_score(labels, of_levels),
        "log loss, one model": losses(of_one, labels).mean(),
    }
    for spread in federation.hospitals.spreads:
        figures[f"sd between {spread.between}"] = spread.standard_deviation
    rates = dict(federation.hospitals.new_hospital_rates)
    unknown = rates.pop("")
    figures["new hospital: rate"] = unknown.rate
    figures["new hospital: width"] = unknown.interval[1] - unknown.interval[0]
    if rates:
        widths = [rate.interval[1] - rate.interval[0] for rate in rates.values()]
        figures["country known: mean width"] = np.mean(widths)
    return {name: float(value) for name, value in figures.items()}


def program_table(
    runs: Iterable[Federation], draws: Sequence[Federation], splits: Sequence[Split]
) -> pd.DataFrame:
    """Hold every run's figures against draws of the noise on the same split.

    Args:
        runs: Of the program.
        draws: By NumPy; those of the run's seed and budget count.
        splits: One for each seed.

    Returns:
        A row for each run and figure: `seed`, `figure`, `program`, `mean` and `sd` of the draws,
        their number, and how many are `below` the program's.
    """
    split_of_seed: Mapping[int, Split] = {split.seed: split for split in splits}
    rows: list[dict[str, object]] = []
    figures_of_draws: dict[tuple[int, str], pd.DataFrame] = {}
    for run in runs:
        split = split_of_seed[run.seed]
        key = (run.seed, run.privacy)
        if key not in figures_of_draws:
            same = [draw for draw in draws if trains_all(draw) and (draw.seed, draw.privacy) == key]
            figures_of_draws[key] = pd.DataFrame([federation_figures(draw, split) for draw in same])
        drawn = figures_of_draws[key]
        for figure, value in federation_figures(run, split).items():
            rows.append(
                {
                    "seed": run.seed,
                    "figure": figure,
                    "program": value,
                    "mean": drawn[figure].mean(),
                    "sd": drawn[figure].std(ddof=1),
                    "draws": len(drawn),
                    "below": int((drawn[figure] < value).sum()),
                }
            )
    return pd.DataFrame(rows)


def program_summary(table: pd.DataFrame) -> pd.DataFrame:
    """Say for each figure how far the runs are from the draws, over all runs.

    Args:
        table: As of `program_table`.

    Returns:
        A row for each figure: number of `runs`, the mean of (run - mean of draws) / sd of draws,
        its two-sided `p` as if normal, and how many runs lie `outside` all draws.
    """
    off = (table["program"] - table["mean"]) / table["sd"]
    outside = (table["below"] == 0) | (table["below"] == table["draws"])
    frame = table.assign(off=off, outside=outside)
    summary = frame.groupby("figure", sort=False).agg(
        runs=("off", "size"), off=("off", "mean"), outside=("outside", "sum")
    )
    # The mean of the draws is known within sd / sqrt(draws) on each split.
    error = np.sqrt(1 / summary["runs"] + 1 / table["draws"].min() / table["seed"].nunique())
    summary["p"] = 2 * norm.sf(np.abs(summary["off"]) / error)
    return summary.reset_index()


def noise_table(folder: Path, splits: Sequence[Split]) -> pd.DataFrame:
    """Look at the noise in what the hospitals of kept runs released, and at the runs' steps.

    Args:
        folder: Holds the runs.
        splits: One for each seed.

    Returns:
        A row for each run, as of `noise_row`.
    """
    split_of_seed = {split.seed: split for split in splits}
    rows = []
    for run in sorted(folder.iterdir()):
        seed = read_kept_run(run).seed
        rows.append({"run": run.name, "seed": seed, **noise_row(run, split_of_seed[seed])})
    return pd.DataFrame(rows)


def noise_row(folder: Path, split: Split) -> dict[str, float]:
    """Compute the mean sums after burn-in anew at a run's own states, and compare.

    Of each hospital's own intercept the run keeps the mean over these rounds, at which all are
    computed.

    Args:
        folder: A kept run with noise.
        split: Its patients.

    Returns:
        `numbers` that were released, the root mean `square` of their noise over the planned one,
        and what is most `off`: planned noises, relatively, and the way from the first state after
        burn-in to the last one.
    """
    federation = read_kept_run(folder)
    scenario = federation.scenario
    with RunStore.open(folder, to_read=True) as store:
        bank = PosteriorBank(store)
        means = log_odds_means(site_means(bank.last(HOSPITALS, 0) or {}))
        rounds = PooledRounds.of_arrays(bank.last(POOLED_ROUNDS, 0) or {})
    states = rounds.states[scenario.training.burn_in :]
    train = training_patients(scenario, split)
    hospital = np.unique(train.hospitals, return_inverse=True)[1]
    units = np.bincount(hospital)
    features = with_intercept(train.features)
    moved = means.states - means.states.mean(axis=0)
    exact = np.mean(
        [
            clipped_sums(features, train.labels, hospital, states=state + moved, scenario=scenario)
            for state in states
        ],
        axis=0,
    )
    planned = planned_noises(scenario, units)[:, scenario.training.burn_in :]
    noise = np.sqrt(np.square(planned).mean(axis=1) / len(states))
    standardised = (means.gradients - exact) / noise[:, None]
    weights = hospital_weights(scenario, units)
    prior = scenario.sampler.prior
    assert isinstance(prior, GaussianPrior)
    prior_weights = site_plan(scenario, len(units)).prior_share * weights / units
    pull = prior_weights @ means.states / prior.scale**2
    gradient = weights @ (means.gradients / units[:, None])
    way = -scenario.sampler.step_size.initial * len(states) * (2 * gradient + pull)
    return {
        "numbers": standardised.size,
        "square": float(np.sqrt(np.square(standardised).mean())),
        "planned off": float(np.abs(means.noise / noise - 1).max()),
        "steps off": float(np.abs(federation.samples[-1] - states[0] - way).max()),
    }
