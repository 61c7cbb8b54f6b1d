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
SENSITIVITY = release.sensitivity

Detector = Callable[[Scenario, Path, np.random.Generator], list[Check]]
Fault = Callable[[pytest.MonkeyPatch], None]


def noise(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    return audit_noise(scenario, folder, UNITS_OF_SCENARIO)


def epsilon(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    return audit_canaries(scenario, folder, generator, most=600).checks


def replace(patch: pytest.MonkeyPatch, holder: object, name: str, change: Callable) -> None:
    """Put `change(original)` in the place of what a module or class holds."""
    patch.setattr(holder, name, change(getattr(holder, name)))


def change_keywords(holder: object, name: str, change: Callable[[dict], dict]) -> Fault:
    return lambda patch: replace(
        patch, holder, name, lambda original: lambda *given, **rest: original(*given, **(rest | change(rest)))
    )


def change_gradient(change: Callable[[dict], dict]) -> Fault:
    return change_keywords(chain, "noisy_gradient", change)


def change_run(change: Callable[[dict], dict]) -> Fault:
    return change_keywords(clients.train, "run_chain", change)


def change_noise(share: Callable[[dict], float | np.ndarray]) -> Fault:
    def changed(rest: dict) -> dict:
        planned = rest["chain"]
        return {"chain": dataclasses.replace(planned, noise_multipliers=share(rest) * planned.noise_multipliers)}

    return change_run(changed)


def change_site(handler, **parts: str) -> Fault:
    def exchanged(site):
        return dataclasses.replace(site, **{part: getattr(site, other) for part, other in parts.items()})

    return lambda patch: replace(
        patch, handler, "load_site", lambda original: lambda site_file: exchanged(original(site_file))
    )


def change_clip(change: Callable) -> Fault:
    return lambda patch: replace(patch, book_keeping, "clip_factors", change)


def change_batches(change: Callable) -> Fault:
    return lambda patch: replace(patch, minibatch, "poisson_units", change)


def realised_batch_size(patch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def watched(original):
        def units(*arguments):
            found = original(*arguments)
            drawn.append(len(found))
            return found

        return units

    change_batches(watched)(patch)
    change_gradient(lambda rest: {"expected_batch_size": max(1, drawn[-1])})(patch)


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


def shuffled_epochs(poisson: Callable) -> Callable:
    waiting: list[int] = []

    def batch(generator: np.random.Generator, count: int, rate: float) -> np.ndarray:
        if not waiting:
            waiting.extend(generator.permutation(count).tolist())
        taken, waiting[:] = waiting[: round(rate * count)], waiting[round(rate * count) :]
        return np.sort(taken)

    return batch


def one_batch_for_the_whole_stretch(patch: pytest.MonkeyPatch) -> None:
    drawn: dict = {}
    original = minibatch.BatchGradient.__init__

    def forgetful(self, *data, **rest):
        drawn.clear()
        original(self, *data, **rest)

    patch.setattr(minibatch.BatchGradient, "__init__", forgetful)
    change_batches(lambda poisson: lambda *given: drawn.setdefault("batch", poisson(*given)))(patch)


def clip_per_record(patch: pytest.MonkeyPatch) -> None:
    def summed(self, module, features, targets, counts):
        rule = {"clip_norm": self._clip_norm, "clipping": self._privacy.clipping, "loss": self._loss}
        return self._clipped_sum(module, features, targets, **rule)

    patch.setattr(minibatch.BatchGradient, "_materialised_sum", summed)


class Repeating:
    """A generator that forgets that it was asked before."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator, self._drawn = generator, None

    def standard_normal(self, *arguments, **rest):
        if self._drawn is None:
            self._drawn = self._generator.standard_normal(*arguments, **rest)
        return self._drawn


def descent_with_half_the_noise(patch: pytest.MonkeyPatch) -> None:
    def halved(plan):
        return dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier / 2)

    replace(
        patch, clients.recalibrate, "private_fit",
        lambda original: lambda *data, **rest: original(*data[:3], halved(data[3]), **rest),
    )  # fmt: skip


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


def patched(holder: object, name: str, value: Callable) -> Fault:
    return lambda patch: patch.setattr(holder, name, value)


FAULTS: dict[str, Fault] = {
    "half the noise": change_gradient(lambda rest: {"noise": rest["noise"] / 2}),
    "noise over root batch size": change_gradient(
        lambda rest: {"noise": rest["noise"] / math.sqrt(rest["expected_batch_size"])}
    ),
    "no clipping": change_clip(lambda sound: lambda norms, *rest: [torch.ones_like(each) for each in norms]),
    "stream reused between rounds": patched(
        clients.train, "site_streams", lambda file, run, *_: Streams.from_insecure_seed(0, file.name + run)
    ),
    "realised batch size": realised_batch_size,
    "prior inside the clip": prior_inside_the_clip,
    "bias without noise": change_gradient(
        lambda rest: {"noise": torch.cat([rest["noise"][:-BIAS_SIZE], torch.zeros(BIAS_SIZE)])}
    ),
    "clip norm schedule not followed by the noise": change_clip(
        lambda sound: lambda norms, bound, *rest: sound(norms, 1.1 * bound, *rest)
    ),
    "fixed-size batches": change_batches(
        lambda sound: lambda generator, count, rate: np.sort(generator.permutation(count)[: round(rate * count)])
    ),
    "shuffled epochs": change_batches(shuffled_epochs),
    "joins too often": change_batches(lambda sound: lambda generator, count, rate: sound(generator, count, 1.2 * rate)),
    "one batch for the whole stretch": one_batch_for_the_whole_stretch,
    "clip per record": clip_per_record,
    "clip norm for each layer": change_clip(
        lambda sound: lambda norms, *rest: [sound([each], *rest)[0] for each in norms]
    ),
    "noise repeats within a stretch": change_run(
        lambda rest: {"streams": rest["streams"]._replace(noise=Repeating(rest["streams"].noise))}
    ),
    "second chain with a hundredth of its noise": change_noise(
        lambda rest: 1.0 if rest["steps"].start < rest["chain"].plan.chain_steps else 0.01
    ),
    "late steps with half their noise": change_noise(
        lambda rest: 1 - 0.5 * (np.arange(size := len(rest["chain"].noise_multipliers)) >= 2 * size // 3)
    ),
    "recalibration reads training units": change_site(clients.recalibrate, recalibration="train"),
    "evaluation reads training units": change_site(clients.evaluate, test="train"),
    "isotonic noise forgets its cap": patched(clients.recalibrate, "sensitivity", lambda most: SENSITIVITY()),
    "isotonic counts forget their cap": patched(clients.recalibrate, "capped_units", lambda part, most: part),
    "evaluation noise forgets its cap": patched(release, "sensitivity", lambda most: SENSITIVITY()),
    "descent with half the noise": descent_with_half_the_noise,
    "descent that repeats its noise": change_keywords(
        clients.recalibrate, "private_fit", lambda rest: {"generator": np.random.default_rng(3)}
    ),
    "samples kept before their noise": samples_kept_before_their_noise,
}


@dataclass(frozen=True)
class Planted:
    """A fault, the part that has to find it, words of checks that have to fail, and changes of the quickstart."""

    fault: str
    detector: Detector
    words: str
    overrides: tuple[str, ...] = ()
    name: str = ""
    also: str = ""

    def __str__(self) -> str:
        return f"{self.fault}{self.name and f' ({self.name})'}, by {self.detector.__name__}"


DEVIATION, JOIN = "noise has the accounted deviation", "join independently"
PLANTED = [
    Planted("half the noise", noise, DEVIATION),
    Planted("half the noise", epsilon, "Gaussian trade-off", ("privacy.sampling_rate=1.0", *CONSTANT)),
    Planted("noise over root batch size", noise, DEVIATION),
    Planted("no clipping", audit_alone, "at most C"),
    Planted("no clipping", audit_sums, "adds its clipped gradient once"),
    Planted("stream reused between rounds", noise, "share noise"),
    Planted("realised batch size", audit_sums, "adds its clipped gradient once"),
    Planted("prior inside the clip", audit_sums, "nothing but clipped gradients"),
    Planted("bias without noise", noise, "every tensor"),
    Planted("clip norm schedule not followed by the noise", audit_alone, "at most C"),
    Planted("fixed-size batches", audit_sums, JOIN),
    Planted("shuffled epochs", audit_sums, JOIN),
    Planted("joins too often", audit_sums, "accounted probability"),
    Planted("joins too often", audit_sums, "accounted probability", ("privacy.sampling_rate=0.05",), "q = .05"),
    Planted("one batch for the whole stretch", audit_sums, JOIN),
    Planted("clip per record", audit_alone, "at most C"),
    Planted("clip per record", audit_sums, "adds its clipped gradient once"),
    Planted("clip norm for each layer", audit_alone, "at most C", (MLP,)),
    *(Planted("half the noise", noise, DEVIATION, (*CONSTANT, *keys), kind) for kind, keys in OTHER_SAMPLERS.items()),
    Planted("noise repeats within a stretch", noise, DEVIATION),
    Planted("second chain with a hundredth of its noise", noise, DEVIATION, ("training.chains=2",)),
    Planted("late steps with half their noise", noise, DEVIATION),
    Planted("recalibration reads training units", audit_counts, "units of the recalibration part, each clipped once",
        also="records of each unit of the recalibration part",
    ),
    Planted("isotonic noise forgets its cap", audit_counts, "cap on a unit's records"),
    Planted("isotonic counts forget their cap", audit_counts, "records of each unit of the recalibration part"),
    Planted("descent with half the noise", audit_counts, "within a request and across"),
    Planted("descent that repeats its noise", audit_counts, "no two requests in a row share noise"),
    Planted("samples kept before their noise", audit_sums, "a kept sample is the released state"),
    Planted("evaluation reads training units", audit_counts, "records of each unit of the test part",
        also="counts the records of the test part",
    ),
    Planted("evaluation noise forgets its cap", audit_counts, "cap on a unit's records"),
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
            FAULTS[planted.fault](patch)
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
    [
        pytest.param(each, marks=[] if i in QUICK else [pytest.mark.slow], id=str(each))
        for i, each in enumerate(PLANTED)
    ],
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
