"""Faults planted into the path that sites run, and the part of the audit that has to find each.

`FL_DPBAYES_AUDIT_RUNS=20` repeats every fault so often, and clean audits twice as often, with fresh seeds.
"""

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import clients.evaluate
import clients.recalibrate
import clients.train
from fl_dpbayes.calibration import release
from fl_dpbayes.config.scenario import Scenario, load_scenario
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.models.priors import prior_gradient
from fl_dpbayes.privacy.audit_statistics import Check
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.run.audit.canaries import audit_canaries
from fl_dpbayes.run.audit.counts import audit_counts
from fl_dpbayes.run.audit.noise import audit_noise
from fl_dpbayes.run.audit.one_unit import audit_alone
from fl_dpbayes.run.audit.sums import audit_sums
from fl_dpbayes.samplers import algorithm, chain, minibatch
from fl_dpbayes.samplers.gradients import book_keeping
from fl_dpbayes.samplers.gradients.clipping import sum_clipped
from fl_dpbayes.samplers.gradients.engine import GradientEngine
from fl_dpbayes.samplers.gradients.vmap import per_example_gradients
from fl_dpbayes.samplers.planned import PlannedChain

RUNS = int(os.environ.get("FL_DPBAYES_AUDIT_RUNS", "0"))
CONSTANT = ("privacy.coupling=constant", "privacy.temperature=")
MLP = 'model={kind="mlp", hidden=[5]}'
OTHER_SAMPLERS = {
    "dp-sgd": ("sampler.kind=dp-sgd", "sampler.momentum=0.9"),
    "dp-adam": ("sampler.kind=dp-adam",),
    "dp-sghmc": ("sampler.kind=dp-sghmc",),
    "dp-bbp": ("sampler.kind=dp-bbp", "aggregation.rule=mixture"),
    "dp-mc-dropout": ("sampler.kind=dp-mc-dropout", "aggregation.rule=mixture", MLP),
}
UNITS_OF_SCENARIO = 200
BIAS_SIZE = 10

Detector = Callable[[Scenario, Path, np.random.Generator], list[Check]]


def noise(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    return audit_noise(scenario, folder, UNITS_OF_SCENARIO)


def epsilon(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    return audit_canaries(scenario, folder, generator, most=600).checks


def change_gradient(patch: pytest.MonkeyPatch, change: Callable[[dict], dict]) -> None:
    original = chain.noisy_gradient
    patch.setattr(chain, "noisy_gradient", lambda *states, **rest: original(*states, **(rest | change(rest))))


def change_run(patch: pytest.MonkeyPatch, change: Callable[[dict], dict]) -> None:
    original = clients.train.run_chain
    patch.setattr(clients.train, "run_chain", lambda *data, **rest: original(*data, **(rest | change(rest))))


def with_noise(planned: PlannedChain, noise_multipliers: np.ndarray) -> PlannedChain:
    return dataclasses.replace(planned, noise_multipliers=noise_multipliers)


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    change_gradient(patch, lambda rest: {"noise": rest["noise"] / 2})


def no_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(book_keeping, "clip_factors", lambda norms, *rest: [torch.ones_like(each) for each in norms])


def noise_over_root_batch_size(patch: pytest.MonkeyPatch) -> None:
    change_gradient(patch, lambda rest: {"noise": rest["noise"] / math.sqrt(rest["expected_batch_size"])})


def stream_reused_between_rounds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        clients.train, "site_streams", lambda site_file, run, *_: Streams.from_insecure_seed(0, site_file.name + run)
    )


def realised_batch_size(patch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    original = minibatch.poisson_units

    def watched(*arguments):
        units = original(*arguments)
        drawn.append(len(units))
        return units

    patch.setattr(minibatch, "poisson_units", watched)
    change_gradient(patch, lambda rest: {"expected_batch_size": max(1, drawn[-1])})


def prior_inside_the_clip(patch: pytest.MonkeyPatch) -> None:
    original = chain.run_chain

    def faulty(*arguments, chain, **rest):
        plan, units = chain.plan, chain.units

        def clipped_sum(module, features, labels, *, clip_norm, **rest):
            share = plan.prior_share / units
            gradients = per_example_gradients(module, features, labels)
            return sum_clipped(gradients - share * prior_gradient(plan.prior, to_vector(module)), clip_norm)

        patch.setattr(minibatch, "gradient_engine", lambda *_: GradientEngine("vmap", clipped_sum))
        patch.setattr(algorithm, "prior_gradient", lambda prior, vector: torch.zeros_like(vector))
        return original(*arguments, chain=chain, **rest)

    patch.setattr(clients.train, "run_chain", faulty)


def bias_without_noise(patch: pytest.MonkeyPatch) -> None:
    def silenced(rest: dict) -> dict:
        noise = rest["noise"].clone()
        noise[-BIAS_SIZE:] = 0
        return {"noise": noise}

    change_gradient(patch, silenced)


def clip_norm_schedule_not_followed_by_the_noise(patch: pytest.MonkeyPatch) -> None:
    original = book_keeping.clip_factors
    patch.setattr(book_keeping, "clip_factors", lambda norms, bound, *rest: original(norms, 1.1 * bound, *rest))


def fixed_size(generator: np.random.Generator, count: int, rate: float) -> np.ndarray:
    return np.sort(generator.permutation(count)[: round(rate * count)])


def fixed_size_batches(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(minibatch, "poisson_units", fixed_size)


def joins_too_often(patch: pytest.MonkeyPatch) -> None:
    original = minibatch.poisson_units
    patch.setattr(minibatch, "poisson_units", lambda generator, count, rate: original(generator, count, 1.2 * rate))


def one_batch_for_the_whole_stretch(patch: pytest.MonkeyPatch) -> None:
    original, drawn = minibatch.BatchGradient.__init__, {}

    def forgetful(self, *data, **rest):
        drawn.clear()
        original(self, *data, **rest)

    poisson = minibatch.poisson_units
    patch.setattr(minibatch.BatchGradient, "__init__", forgetful)
    patch.setattr(minibatch, "poisson_units", lambda *given: drawn.setdefault("batch", poisson(*given)))


def clip_per_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        minibatch.BatchGradient,
        "_materialised_sum",
        lambda self, module, features, targets, counts: self._clipped_sum(
            module, features, targets, clip_norm=self._clip_norm, clipping=self._privacy.clipping, loss=self._loss
        ),
    )


def clip_norm_for_each_layer(patch: pytest.MonkeyPatch) -> None:
    original = book_keeping.clip_factors
    patch.setattr(book_keeping, "clip_factors", lambda norms, *rest: [original([each], *rest)[0] for each in norms])


class Repeating:
    """A generator that forgets that it was asked before."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator, self._drawn = generator, None

    def standard_normal(self, *arguments, **rest):
        if self._drawn is None:
            self._drawn = self._generator.standard_normal(*arguments, **rest)
        return self._drawn


def noise_repeats_within_a_stretch(patch: pytest.MonkeyPatch) -> None:
    change_run(patch, lambda rest: {"streams": rest["streams"]._replace(noise=Repeating(rest["streams"].noise))})


def second_chain_with_a_hundredth_of_its_noise(patch: pytest.MonkeyPatch) -> None:
    def quiet(rest: dict) -> dict:
        share = 1.0 if rest["steps"].start < rest["chain"].plan.chain_steps else 0.01
        return {"chain": with_noise(rest["chain"], share * rest["chain"].noise_multipliers)}

    change_run(patch, quiet)


def late_steps_with_half_their_noise(patch: pytest.MonkeyPatch) -> None:
    def quiet(rest: dict) -> dict:
        sigmas = rest["chain"].noise_multipliers.copy()
        sigmas[2 * len(sigmas) // 3 :] /= 2
        return {"chain": with_noise(rest["chain"], sigmas)}

    change_run(patch, quiet)


def change_site(patch: pytest.MonkeyPatch, handler, **parts: str) -> None:
    original = handler.load_site

    def exchanged(site_file):
        site = original(site_file)
        return dataclasses.replace(site, **{part: getattr(site, other) for part, other in parts.items()})

    patch.setattr(handler, "load_site", exchanged)


def recalibration_reads_training_units(patch: pytest.MonkeyPatch) -> None:
    change_site(patch, clients.recalibrate, recalibration="train")


def evaluation_reads_training_units(patch: pytest.MonkeyPatch) -> None:
    change_site(patch, clients.evaluate, test="train")


def isotonic_noise_forgets_its_cap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clients.recalibrate, "sensitivity", lambda most: release.sensitivity())


def isotonic_counts_forget_their_cap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clients.recalibrate, "capped_units", lambda part, most: part)


def evaluation_noise_forgets_its_cap(patch: pytest.MonkeyPatch) -> None:
    original = release.sensitivity
    patch.setattr(release, "sensitivity", lambda most: original())


def descent_with_half_the_noise(patch: pytest.MonkeyPatch) -> None:
    original = clients.recalibrate.private_fit
    patch.setattr(
        clients.recalibrate,
        "private_fit",
        lambda *data, **rest: original(
            *data[:3], dataclasses.replace(data[3], noise_multiplier=data[3].noise_multiplier / 2), **rest
        ),
    )


def descent_that_repeats_its_noise(patch: pytest.MonkeyPatch) -> None:
    original = clients.recalibrate.private_fit
    patch.setattr(
        clients.recalibrate,
        "private_fit",
        lambda *data, generator, **rest: original(*data, generator=np.random.default_rng(3), **rest),
    )


def samples_kept_before_their_noise(patch: pytest.MonkeyPatch) -> None:
    original, build, states = chain.noisy_gradient, chain.build_algorithm, {}

    def watched(total: torch.Tensor, **rest) -> torch.Tensor:
        states["gradient"] = original(total, **(rest | {"noise": torch.zeros_like(rest["noise"])}))
        return original(total, **rest)

    def built(*arguments):
        sound = build(*arguments)

        def step(state, noisy, size):
            states["kept"] = sound.step(state, states["gradient"], size).parameters
            return sound.step(state, noisy, size)

        return dataclasses.replace(sound, step=step, draw=lambda *_: states["kept"])

    patch.setattr(chain, "noisy_gradient", watched)
    patch.setattr(chain, "build_algorithm", built)


@dataclass(frozen=True)
class Planted:
    """A fault, the part that has to find it, words of checks that have to fail, and changes of the quickstart."""

    fault: Callable[[pytest.MonkeyPatch], None]
    detector: Detector
    words: str
    overrides: tuple[str, ...] = ()
    name: str = ""
    also: str = ""

    def __str__(self) -> str:
        return f"{self.fault.__name__}{self.name and f' ({self.name})'}, by {self.detector.__name__}"


DEVIATION, JOIN = "noise has the accounted deviation", "join independently"
FAULTS = [
    Planted(half_the_noise, noise, DEVIATION),
    Planted(half_the_noise, epsilon, "Gaussian trade-off", ("privacy.sampling_rate=1.0", *CONSTANT)),
    Planted(noise_over_root_batch_size, noise, DEVIATION),
    Planted(no_clipping, audit_alone, "at most C"),
    Planted(no_clipping, audit_sums, "adds its clipped gradient once"),
    Planted(stream_reused_between_rounds, noise, "share noise"),
    Planted(realised_batch_size, audit_sums, "adds its clipped gradient once"),
    Planted(prior_inside_the_clip, audit_sums, "nothing but clipped gradients"),
    Planted(bias_without_noise, noise, "every tensor"),
    Planted(clip_norm_schedule_not_followed_by_the_noise, audit_alone, "at most C"),
    Planted(fixed_size_batches, audit_sums, JOIN),
    Planted(joins_too_often, audit_sums, "accounted probability"),
    Planted(joins_too_often, audit_sums, "accounted probability", ("privacy.sampling_rate=0.05",), "q = .05"),
    Planted(one_batch_for_the_whole_stretch, audit_sums, JOIN),
    Planted(clip_per_record, audit_alone, "at most C"),
    Planted(clip_per_record, audit_sums, "adds its clipped gradient once"),
    Planted(clip_norm_for_each_layer, audit_alone, "at most C", (MLP,)),
    *(Planted(half_the_noise, noise, DEVIATION, (*CONSTANT, *keys), kind) for kind, keys in OTHER_SAMPLERS.items()),
    Planted(noise_repeats_within_a_stretch, noise, DEVIATION),
    Planted(second_chain_with_a_hundredth_of_its_noise, noise, DEVIATION, ("training.chains=2",)),
    Planted(late_steps_with_half_their_noise, noise, DEVIATION),
    Planted(
        recalibration_reads_training_units, audit_counts, "units of the recalibration part, each clipped once",
        also="records of each unit of the recalibration part",
    ),
    Planted(isotonic_noise_forgets_its_cap, audit_counts, "cap on a unit's records"),
    Planted(isotonic_counts_forget_their_cap, audit_counts, "records of each unit of the recalibration part"),
    Planted(descent_with_half_the_noise, audit_counts, "within a request and across"),
    Planted(descent_that_repeats_its_noise, audit_counts, "no two requests in a row share noise"),
    Planted(samples_kept_before_their_noise, audit_sums, "a kept sample is the released state"),
    Planted(
        evaluation_reads_training_units, audit_counts, "records of each unit of the test part",
        also="counts the records of the test part",
    ),
    Planted(evaluation_noise_forgets_its_cap, audit_counts, "cap on a unit's records"),
]  # fmt: skip
# One of each kind, in the quick run; the others are slow.
QUICK = {3, 7, 9, 18, 20, 23, 24}


def seeds(count: int) -> list[int]:
    """Return seeds of which some are new whenever the tests are asked for many runs."""
    if not RUNS:
        return list(range(count))
    return [int(seed) for seed in np.random.SeedSequence().generate_state(count)]


def audited(seed: int, overrides: tuple[str, ...], detector: Detector, folder: Path) -> list[Check]:
    scenario = load_scenario("quickstart", [*overrides, f"simulation.insecure_seed={seed}"])
    return detector(scenario, folder / f"{detector.__name__}-{seed}", np.random.default_rng(seed))


def assert_found(planted: Planted, folder: Path) -> None:
    missed = []
    for seed in seeds(RUNS or 1):
        with pytest.MonkeyPatch.context() as patch:
            planted.fault(patch)
            checks = audited(seed, planted.overrides, planted.detector, folder)
        failed = " / ".join(check.what for check in checks if not check.passed)
        if planted.words not in failed or planted.also not in failed:
            missed.append((seed, checks))
    assert not missed


def assert_no_alarm(overrides: tuple[str, ...], detectors: list[Detector], count: int, folder: Path) -> None:
    alarms = [
        (seed, check)
        for seed in seeds(count)
        for detector in detectors
        for check in audited(seed, overrides, detector, folder)
        if not check.passed
    ]
    assert not alarms


@pytest.mark.parametrize(
    "planted",
    [pytest.param(each, marks=[] if i in QUICK else [pytest.mark.slow], id=str(each)) for i, each in enumerate(FAULTS)],
)
def test_planted_fault_is_found(planted: Planted, tmp_path: Path) -> None:
    assert_found(planted, tmp_path)


@pytest.mark.slow
def test_sound_path_raises_no_alarm(tmp_path: Path) -> None:
    assert_no_alarm((), [noise, audit_sums, audit_alone, audit_counts, epsilon], 2 * RUNS or 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHER_SAMPLERS)
def test_sound_path_of_other_samplers_raises_no_alarm(kind: str, tmp_path: Path) -> None:
    # Counts read a posterior of the auditor's, and canaries are trained by Langevin steps: no sampler enters them.
    assert_no_alarm((*CONSTANT, *OTHER_SAMPLERS[kind]), [noise, audit_sums, audit_alone], 1, tmp_path)
