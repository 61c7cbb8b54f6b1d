"""Faults planted into the training path that sites run, and the detector that has to find each."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import clients.train
from fl_dpbayes.gradients import book_keeping
from fl_dpbayes.gradients.clipping import sum_clipped
from fl_dpbayes.gradients.engine import GradientEngine
from fl_dpbayes.gradients.vmap import per_example_gradients
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.models.priors import prior_gradient
from fl_dpbayes.privacy.audit_check import Check
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.run.audit_canaries import audit_canaries
from fl_dpbayes.run.audit_neighbours import audit_neighbours
from fl_dpbayes.run.audit_noise import audit_noise
from fl_dpbayes.samplers import algorithm, chain, drift, minibatch
from fl_dpbayes.scenario import Scenario, load_scenario

QUICK_SEEDS, ALL_SEEDS = range(2), range(20)
SMALL = [
    "training={rounds=2, steps_per_round=10, burn_in=0, thinning=1}",
    "privacy.coupling=constant",
    "privacy.temperature=",
]
CANARIES = 600
BIAS_SIZE = 10


def scenario(seed: int, sampling_rate: float = 1.0) -> Scenario:
    return load_scenario(
        "quickstart", [*SMALL, f"simulation.insecure_seed={seed}", f"privacy.sampling_rate={sampling_rate}"]
    )


def canaries(seed: int, folder: Path, sampling_rate: float = 1.0) -> list[Check]:
    generator = np.random.default_rng(seed)
    return audit_canaries(scenario(seed, sampling_rate), folder / f"canaries-{seed}", generator, most=CANARIES).checks


def neighbours(seed: int, folder: Path, sampling_rate: float = 1.0) -> list[Check]:
    generator = np.random.default_rng(seed)
    return audit_neighbours(scenario(seed, sampling_rate), folder / f"neighbours-{seed}", generator)


def noise(seed: int, folder: Path, sampling_rate: float = 1.0) -> list[Check]:
    generator = np.random.default_rng(seed)
    return audit_noise(scenario(seed, sampling_rate), folder / f"noise-{seed}", generator)


def change_drift(patch: pytest.MonkeyPatch, change: Callable[[dict], dict]) -> None:
    original = drift.private_drift
    patch.setattr(drift, "private_drift", lambda *states, **rest: original(*states, **(rest | change(rest))))


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    change_drift(patch, lambda rest: {"noise": rest["noise"] / 2})


def no_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(book_keeping, "clip_factors", lambda norms, *rest: [torch.ones_like(each) for each in norms])


def noise_over_root_batch_size(patch: pytest.MonkeyPatch) -> None:
    change_drift(patch, lambda rest: {"noise": rest["noise"] / math.sqrt(rest["expected_batch_size"])})


def stream_reused_between_rounds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        clients.train,
        "_streams",
        lambda site_file, request: Streams.from_insecure_seed(
            site_file.insecure_seed, f"{site_file.name}|{request.run}"
        ),
    )


def realised_batch_size(patch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    original = minibatch.poisson_units

    def watched(*arguments):
        units = original(*arguments)
        drawn.append(len(units))
        return units

    patch.setattr(minibatch, "poisson_units", watched)
    change_drift(patch, lambda rest: {"expected_batch_size": max(1, drawn[-1])})


def prior_inside_the_clip(patch: pytest.MonkeyPatch) -> None:
    original = chain.run_chain

    def faulty(module, *arguments, plan, units, **rest):
        def clipped_sum(module, features, labels, *, clip_norm, **rest):
            share = plan.prior_share / units
            gradients = per_example_gradients(module, features, labels)
            return sum_clipped(gradients - share * prior_gradient(plan.prior, to_vector(module)), clip_norm)

        patch.setattr(minibatch, "gradient_engine", lambda *_: GradientEngine("vmap", clipped_sum))
        patch.setattr(algorithm, "prior_gradient", lambda prior, vector: torch.zeros_like(vector))
        return original(module, *arguments, plan=plan, units=units, **rest)

    patch.setattr(clients.train, "run_chain", faulty)


def bias_without_noise(patch: pytest.MonkeyPatch) -> None:
    def silenced(rest: dict) -> dict:
        noise = rest["noise"].clone()
        noise[-BIAS_SIZE:] = 0
        return {"noise": noise}

    change_drift(patch, silenced)


def clip_norm_schedule_not_followed_by_the_noise(patch: pytest.MonkeyPatch) -> None:
    original = book_keeping.clipped_sum
    patch.setattr(
        book_keeping,
        "clipped_sum",
        lambda *records, clip_norm, **rest: original(*records, clip_norm=1.1 * clip_norm, **rest),
    )


# The detector named for each fault, and words of the check that has to fail.
FAULTS = [
    (half_the_noise, canaries, "Gaussian trade-off"),
    (half_the_noise, noise, "claimed variance"),
    (no_clipping, neighbours, "moves the sum by at most C"),
    (noise_over_root_batch_size, canaries, "Gaussian trade-off"),
    (noise_over_root_batch_size, noise, "claimed variance"),
    (stream_reused_between_rounds, noise, "across rounds"),
    (realised_batch_size, neighbours, "nothing else"),
    (prior_inside_the_clip, neighbours, "nothing else"),
    (bias_without_noise, noise, "claimed variance"),
    (clip_norm_schedule_not_followed_by_the_noise, neighbours, "moves the sum by at most C"),
]
NAMES = [f"{fault.__name__}-by-{detector.__name__}" for fault, detector, _ in FAULTS]


def assert_found(fault, detector, words: str, seeds: range, folder: Path, sampling_rate: float = 1.0) -> None:
    missed = []
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            fault(patch)
            checks = detector(seed, folder, sampling_rate)
        if not any(words in check.what and not check.passed for check in checks):
            missed.append((seed, checks))
    assert not missed


def assert_no_alarm(seeds: range, folder: Path, sampling_rate: float = 1.0) -> None:
    alarms = [
        (seed, check)
        for seed in seeds
        for detector in (canaries, neighbours, noise)
        for check in detector(seed, folder, sampling_rate)
        if not check.passed
    ]
    assert not alarms


@pytest.mark.parametrize(("fault", "detector", "words"), FAULTS, ids=NAMES)
def test_planted_fault_is_found(fault, detector, words: str, tmp_path: Path) -> None:
    assert_found(fault, detector, words, QUICK_SEEDS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "detector", "words"), FAULTS, ids=NAMES)
def test_planted_fault_is_found_in_20_of_20_seeds(fault, detector, words: str, tmp_path: Path) -> None:
    assert_found(fault, detector, words, ALL_SEEDS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "detector", "words"), FAULTS, ids=NAMES)
def test_planted_fault_is_found_under_subsampling(fault, detector, words: str, tmp_path: Path) -> None:
    assert_found(fault, detector, words, QUICK_SEEDS, tmp_path, sampling_rate=0.5)


@pytest.mark.slow
def test_canaries_find_missing_noise_where_units_join_rarely(tmp_path: Path) -> None:
    assert_found(noise_over_root_batch_size, canaries, "Gaussian trade-off", QUICK_SEEDS, tmp_path, sampling_rate=0.1)


def test_sound_path_raises_no_alarm(tmp_path: Path) -> None:
    assert_no_alarm(QUICK_SEEDS, tmp_path)


@pytest.mark.slow
def test_sound_path_raises_no_alarm_in_20_runs(tmp_path: Path) -> None:
    assert_no_alarm(ALL_SEEDS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sampling_rate", [0.1, 0.5])
def test_sound_path_raises_no_alarm_under_subsampling(sampling_rate: float, tmp_path: Path) -> None:
    assert_no_alarm(range(5), tmp_path, sampling_rate)
