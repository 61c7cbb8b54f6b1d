"""Faults planted into the path that sites run, and the part of the audit that has to find each.

`FL_DPBAYES_AUDIT_RUNS=20` repeats every fault so often, and clean audits twice as often, with fresh
seeds.
"""

import dataclasses
import inspect
import itertools
import math
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import clients.answer
import clients.evaluate
import clients.own_site
import clients.recalibrate
import clients.train
from fl_dpbayes.audit import own_releases, sums, within
from fl_dpbayes.audit.canaries import audit_canaries
from fl_dpbayes.audit.counts import audit_counts
from fl_dpbayes.audit.noise import audit_noise
from fl_dpbayes.audit.one_unit import audit_one_unit
from fl_dpbayes.audit.own_releases import audit_own_releases
from fl_dpbayes.audit.replies import audit_replies
from fl_dpbayes.audit.sums import audit_sums
from fl_dpbayes.audit.within import audit_within
from fl_dpbayes.calibration import noised_counts as calibration_counts
from fl_dpbayes.calibration.recalibration import isotonic
from fl_dpbayes.config.scenario import Scenario, load_scenario
from fl_dpbayes.config.task import LogisticModel, Task
from fl_dpbayes.files.kept import Kept
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.parameters import to_vector
from fl_dpbayes.models.priors import prior_gradient
from fl_dpbayes.predict import update
from fl_dpbayes.privacy.audit_statistics import Check
from fl_dpbayes.privacy.streams import Streams
from fl_dpbayes.samplers import algorithm, chain, minibatch
from fl_dpbayes.samplers.gradients import clipping, engine
from fl_dpbayes.samplers.gradients.clipping import sum_clipped
from fl_dpbayes.samplers.gradients.vmap import per_example_gradients
from tests import chains
from tests.audit import noise_faults

RUNS = int(os.environ.get("FL_DPBAYES_AUDIT_RUNS", "0"))
CONSTANT = ("privacy.coupling=constant", "privacy.temperature=")
MLP = 'model={kind="mlp", hidden=[5]}'
OTHER_SAMPLERS = {
    "dp-sgd": ("sampler.kind=dp-sgd", "sampler.momentum=0.9"),
    "dp-adam": ("sampler.kind=dp-adam",),
    "dp-sghmc": ("sampler.kind=dp-sghmc",),
    "dp-bbp": ("aggregation.rule=mixture", "sampler.kind=dp-bbp"),
    "dp-mc-dropout": (MLP, "aggregation.rule=mixture", "sampler.kind=dp-mc-dropout"),
}
UNITS_OF_SCENARIO = 200
BIAS_SIZE = 10

Detector = Callable[[Scenario, Path, np.random.Generator], list[Check]]
Fault = Callable[[pytest.MonkeyPatch], None]


def noise(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    return audit_noise(scenario, folder, UNITS_OF_SCENARIO, generator)


def epsilon(scenario: Scenario, folder: Path, generator: np.random.Generator) -> list[Check]:
    return audit_canaries(scenario, folder, generator, most=600).checks


def changed(holder: object, name: str, change: Callable[[Callable], Callable]) -> Fault:
    """Put `change(original)` in the place of what a module or class holds."""
    return lambda patch: patch.setattr(holder, name, change(getattr(holder, name)))


def all_of(*faults: Fault) -> Fault:
    """Plant several, each of which a check of its own has to find."""
    return lambda patch: [plant(patch) for plant in faults]


def without_cap(sound: Callable) -> Callable:
    def uncapped(*arguments, **keywords):
        bound = inspect.signature(sound).bind(*arguments, **keywords)
        bound.arguments["max_records_per_unit"] = 1
        return sound(*bound.args, **bound.kwargs)

    return uncapped


def change_keywords(holder: object, name: str, change: Callable[[dict], dict]) -> Fault:
    return changed(
        holder, name, lambda sound: lambda *given, **rest: sound(*given, **(rest | change(rest)))
    )


change_gradient = partial(change_keywords, chain, "noisy_gradient")
change_run = partial(change_keywords, clients.train, "run_chain")
change_batches = partial(changed, minibatch, "poisson_units")


def change_clip(change: Callable[[Callable], Callable]) -> Fault:
    """Plant it in book-keeping, whose probe must pass: it would choose the other engine."""
    unprobed = changed(engine, "_agrees_with_autograd", lambda sound: lambda *given: True)
    return all_of(changed(clipping, "clip_factors", change), unprobed)


def change_noise(share: Callable[[dict], float | np.ndarray]) -> Fault:
    def quiet(rest: dict) -> dict:
        planned = rest["chain"]
        return {
            "chain": dataclasses.replace(
                planned, noise_multipliers=share(rest) * planned.noise_multipliers
            )
        }

    return change_run(quiet)


def change_site(handler, **parts: str) -> Fault:
    def exchanged(site):
        return dataclasses.replace(
            site, **{part: getattr(site, other) for part, other in parts.items()}
        )

    return changed(
        handler, "load_site", lambda sound: lambda site_file: exchanged(sound(site_file))
    )


def realised_batch_size(patch: pytest.MonkeyPatch) -> None:
    drawn: list[np.ndarray] = []
    change_batches(lambda sound: lambda *given: drawn.append(sound(*given)) or drawn[-1])(patch)
    change_gradient(lambda rest: {"expected_batch_size": max(1, len(drawn[-1]))})(patch)


def prior_inside_the_clip(patch: pytest.MonkeyPatch) -> None:
    original = chain.run_chain

    def faulty(*arguments, chain, **rest):
        plan, units = chain.plan, chain.units

        def clipped_sum(module, features, labels, *, clip_norm, **rest):
            share = plan.prior_share / units
            gradients = per_example_gradients(module, features[: len(labels)], labels)
            return sum_clipped(
                gradients - share * prior_gradient(plan.sampler.prior, to_vector(module)), clip_norm
            )

        patch.setattr(minibatch, "KEPT", Kept())
        patch.setattr(
            minibatch, "gradient_engine", lambda *_: engine.GradientEngine("vmap", clipped_sum)
        )
        patch.setattr(algorithm, "prior_gradient", lambda prior, vector: torch.zeros_like(vector))
        return original(*arguments, chain=chain, **rest)

    patch.setattr(clients.train, "run_chain", faulty)


def shuffled_epochs(poisson: Callable) -> Callable:
    waiting: list[int] = []

    def batch(generator: np.random.Generator, count: int, rate: float) -> np.ndarray:
        if not waiting:
            waiting.extend(generator.random(count).argsort().tolist())
        taken, waiting[:] = waiting[: round(rate * count)], waiting[round(rate * count) :]
        return np.sort(taken)

    return batch


def one_batch_for_the_whole_stretch(patch: pytest.MonkeyPatch) -> None:
    drawn: dict = {}
    begun = minibatch.BatchGradient, "__init__"
    changed(*begun, lambda sound: lambda *given, **rest: drawn.clear() or sound(*given, **rest))(
        patch
    )
    change_batches(lambda poisson: lambda *given: drawn.setdefault("batch", poisson(*given)))(patch)


def clip_per_record(patch: pytest.MonkeyPatch) -> None:
    def summed(self, module, features, targets, counts):
        rule = {
            "clip_norm": self._clip_norm,
            "clipping": self._privacy.clipping,
            "loss": self._loss,
        }
        return self._clipped_sum(module, features, targets, **rule)

    patch.setattr(minibatch.BatchGradient, "_materialised_sum", summed)


def repeating(sound: Callable) -> Callable:
    """Draw the noise of one step for all steps of a stretch."""
    return lambda generator, size, count, device: itertools.repeat(
        next(sound(generator, size, 1, device)), count
    )


def descent_with_half_the_noise(sound: Callable) -> Callable:
    def fit(*data, **rest):
        return sound(
            *data[:3],
            dataclasses.replace(data[3], noise_multiplier=data[3].noise_multiplier / 2),
            **rest,
        )

    return fit


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


def change_noise_vector(change: noise_faults.VectorChange) -> Fault:
    """Change each step's noise, given also its clipped sum."""

    def planted(sound: Callable) -> Callable:
        def gradient(total: torch.Tensor, **rest) -> torch.Tensor:
            other = change(rest["noise"].double(), rest | {"clipped_sum": total})
            return sound(total, **(rest | {"noise": other.float()}))

        return gradient

    return changed(chain, "noisy_gradient", planted)


def change_noise_by_batch(change: Callable[[float], float]) -> Fault:
    """Scale each step's noise by what a realised batch over the expected one makes of it."""

    def planted(patch: pytest.MonkeyPatch) -> None:
        drawn: list[int] = []

        def watched(sound: Callable) -> Callable:
            def draw(*given):
                batch = sound(*given)
                drawn.append(len(batch))
                return batch

            return draw

        change_batches(watched)(patch)
        scaled = lambda rest: rest["noise"] * change(drawn[-1] / rest["expected_batch_size"])  # noqa: E731
        change_gradient(lambda rest: {"noise": scaled(rest)})(patch)

    return planted


def change_result(change: Callable) -> Fault:
    """Change what a chain hands back, given its records."""

    def planted(sound: Callable) -> Callable:
        return lambda module, records, **rest: change(sound(module, records, **rest), records)

    return changed(clients.train, "run_chain", planted)


FAULTS: dict[str, Fault] = {
    "half the noise": change_gradient(lambda rest: {"noise": rest["noise"] / 2}),
    "noise over root batch size": change_gradient(
        lambda rest: {"noise": rest["noise"] / math.sqrt(rest["expected_batch_size"])}
    ),
    "no clipping": change_clip(
        lambda sound: lambda norms, *rest: [torch.ones_like(each) for each in norms]
    ),
    "stream reused between rounds": changed(
        clients.train,
        "site_streams",
        lambda sound: lambda site, run, *_: Streams.from_insecure_seed(0, run + site.name),
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
        lambda sound: (
            lambda generator, count, rate: np.sort(
                generator.random(count).argsort()[: round(rate * count)]
            )
        )
    ),
    "shuffled epochs": change_batches(shuffled_epochs),
    "joins too often": change_batches(
        lambda sound: lambda generator, count, rate: sound(generator, count, 1.2 * rate)
    ),
    "one batch for the whole stretch": one_batch_for_the_whole_stretch,
    "clip per record": clip_per_record,
    "clip norm for each layer": change_clip(
        lambda sound: lambda norms, *rest: [sound([each], *rest)[0] for each in norms]
    ),
    "noise repeats within a stretch": changed(chain, "normal_vectors", repeating),
    "second chain with a hundredth of its noise": change_noise(
        lambda rest: 1.0 if rest["steps"].start < rest["chain"].plan.chain_steps else 0.01
    ),
    "late steps with half their noise": change_noise(
        lambda rest: (
            1 - 0.5 * (np.arange(size := len(rest["chain"].noise_multipliers)) >= 2 * size // 3)
        )
    ),
    # Recalibration and evaluation are asked apart, and have checks of their own.
    "recalibration and evaluation read training units": all_of(
        change_site(clients.recalibrate, recalibration="train"),
        change_site(clients.evaluate, test="train"),
    ),
    "noise of both tables forgets its cap": all_of(
        changed(isotonic, "top_label_counts", without_cap),
        change_keywords(
            clients.evaluate, "release_counts", lambda rest: {"max_records_per_unit": 1}
        ),
    ),
    "both tables count a unit more than once, the descent has half its noise": all_of(
        changed(clients.recalibrate, "capped_units", lambda sound: lambda part, most: part),
        changed(calibration_counts, "CODE", lambda sound: 1.5 * sound),
        changed(clients.recalibrate, "private_fit", descent_with_half_the_noise),
    ),
    "descent that repeats its noise": change_keywords(
        clients.recalibrate, "private_fit", lambda rest: {"generator": np.random.default_rng(3)}
    ),
    "samples kept before their noise": samples_kept_before_their_noise,
    **{name: change_noise_vector(change) for name, change in noise_faults.VECTORS.items()},
    **{name: change_noise_by_batch(change) for name, change in noise_faults.BY_BATCH.items()},
    "labels in the last bits of states": change_result(noise_faults.labels_in_last_bits),
    "class counts in the last bits of states": change_result(
        noise_faults.class_counts_in_last_bits
    ),
    "momentum without its noise": change_result(noise_faults.momentum_without_noise),
    "realised batch size as a metric": noise_faults.batch_as_metric,
    "realised batch size in place of the number of units": noise_faults.batch_as_units,
    "number of records as a metric": noise_faults.records_as_metric,
    "one more array": noise_faults.one_more_array,
    "fresh noise when asked again": noise_faults.fresh_noise_when_asked_again,
    "noise that follows from the request": changed(
        clients.train,
        "site_streams",
        lambda sound: lambda site, *asked: Streams.from_insecure_seed(1, f"{site.name} {asked}"),
    ),
    "half the noise in a hospital's releases": changed(
        Streams,
        "cipher",
        lambda sound: lambda streams, *asked: noise_faults.Quiet(sound(streams, *asked)),
    ),
    # Of both commands, which have a check each.
    "each release moves by more than one": all_of(
        changed(
            update,
            "residual_sum",
            lambda sound: (
                lambda *given: dataclasses.replace(sound(*given), sums=3 * sound(*given).sums)
            ),
        ),
        changed(
            update,
            "set_counts",
            lambda sound: (
                lambda of_label, units, *rest: sound(of_label, np.arange(len(units)), *rest)
            ),
        ),
    ),
    "one stream for all of a hospital's releases": changed(
        clients.own_site,
        "site_streams",
        lambda sound: lambda site, *asked: Streams.from_insecure_seed(1, site.name),
    ),
}


WITHIN = {
    "sum of the noise left out": "in every direction",
    "class sums of the noise left out": "in every direction",
    "noise shared by neighbours": "have anything in common",
    "uniform noise": "noise is normal",
    "noise cut at two deviations": "cut off",
    "noise of float16": "comes again",
    "noise of a short table": "comes again",
    "Laplace noise": "noise is normal",
    "Student noise": "cut off",
    "half of the noise is the other half, mixed up": "comes again",
    "second half mirrors the first": "have anything in common",
    "noise of fewer dimensions": "leading directions",
    "no noise at three places": "at every place",
    "noise larger at some places": "the same at all places",
    "noise with an offset": "no offset",
    "noise beside the gradient alone": "in every direction",
    "noise by the length of the gradient": "the same in all steps",
    "noise by the length of a crowd's gradient": "the same in all steps",
    "noise by the size of the batch": "the same in all steps",
    "noise by the size of the batch, hardly": "the same in all steps",
    "labels in the last bits of states": "last bits",
    "class counts in the last bits of states": "last bits",
}
# Less than an audit takes finds every fault: fewer steps within a request, and fewer requests of a
# hospital's releases. A sound path raises no alarm at any size.
LESS = (
    (within, "LEAST_STEPS", 200),
    (within, "MOST_SPANNING", 200),
    (within, "SINGLE_STEPS", 16),
    (own_releases, "REQUESTS", 8),
)
MORE = {
    "noise beside the gradient alone": (
        (within, "LEAST_STEPS", 400),
        (within, "MOST_SPANNING", 400),
    )
}
LEAST = (*LESS, (sums, "REQUESTS", 4))
# Each fault of sums shows in units of one record, but for this.
OF_SEVERAL_RECORDS = "clip per record"
REPLIES = {
    "realised batch size as a metric": "declared fields",
    "realised batch size in place of the number of units": "declared fields",
    "number of records as a metric": "declared fields",
    "one more array": "declared fields",
    "fresh noise when asked again": "answered again",
    "noise that follows from the request": "independent noise",
}
OWN = {
    "half the noise in a hospital's releases": "accounted deviation",
    "each release moves by more than one": "sums of `update`|sums of `sets`",
    "one stream for all of a hospital's releases": "share noise",
}
DEVIATION, RATE = "noise has the accounted deviation", "accounted probability"
PLAIN = {
    (noise, DEVIATION): (
        "half the noise",
        "noise over root batch size",
        "noise repeats within a stretch",
        "late steps with half their noise",
    ),
    (noise, "share noise"): ("stream reused between rounds",),
    (noise, "every tensor"): ("bias without noise",),
    (audit_one_unit, "at most C"): (
        "no clipping",
        "clip norm schedule not followed by the noise",
        "clip per record",
    ),
    (audit_sums, "adds its clipped gradient once"): (
        "no clipping",
        "realised batch size",
        "clip per record",
    ),
    (audit_sums, "nothing but clipped gradients"): ("prior inside the clip",),
    (audit_sums, "join independently"): (
        "fixed-size batches",
        "shuffled epochs",
        "one batch for the whole stretch",
    ),
    (audit_sums, RATE): ("joins too often",),
    (audit_within, "a kept sample is the released state"): ("samples kept before their noise",),
    (
        audit_counts,
        "isotonic recalibration: noise has the accounted deviation, the cap|"
        "noised evaluation: noise has the accounted deviation, the cap",
    ): ("noise of both tables forgets its cap",),
    (
        audit_counts,
        "records of each unit of the recalibration part|records of each unit of the test part|"
        "within a request and across",
    ): ("both tables count a unit more than once, the descent has half its noise",),
    (audit_counts, "no two requests in a row share noise"): ("descent that repeats its noise",),
    (
        audit_counts,
        "recalibration part, each clipped once|records of each unit of the recalibration part|"
        "records of each unit of the test part|counts the records of the test part",
    ): ("recalibration and evaluation read training units",),
}
# A fault, the part that has to find it, words of checks that have to fail, and changes of `digits`.
PLANTED: list[tuple] = [
    *((fault, *found) for found, faults in PLAIN.items() for fault in faults),
    *(("half the noise", noise, DEVIATION, *CONSTANT, *keys) for keys in OTHER_SAMPLERS.values()),
    ("half the noise", epsilon, "Gaussian trade-off", *CONSTANT, "privacy.sampling_rate=1.0"),
    ("joins too often", audit_sums, RATE, "privacy.sampling_rate=0.05"),
    ("clip norm for each layer", audit_one_unit, "at most C", MLP),
    ("second chain with a hundredth of its noise", noise, DEVIATION, "training.chains=2"),
    *((fault, audit_within, words) for fault, words in WITHIN.items()),
    (
        "momentum without its noise",
        audit_within,
        "follow from its noisy sums",
        *CONSTANT,
        *OTHER_SAMPLERS["dp-sgd"],
    ),
    *((fault, audit_replies, words) for fault, words in REPLIES.items()),
    *((fault, audit_own_releases, words) for fault, words in OWN.items()),
]
# In the quick run; the others are slow.
QUICK = ("no clipping, by audit_one_unit",)


def name_of(fault: str, detector: Detector, words: str, *overrides: str) -> str:
    return ", ".join([fault, f"by {detector.__name__}", *overrides[-1:]])


def seeds(count: int) -> list[int]:
    """Return seeds of which some are new whenever the tests are asked for many runs."""
    if not RUNS:
        return list(range(count))
    return [int(seed) for seed in np.random.SeedSequence().generate_state(count)]


def resize(patch: pytest.MonkeyPatch, sizes: Iterable[tuple[object, str, int]]) -> None:
    for part, name, value in sizes:
        patch.setattr(part, name, value)


def of_one_kind_of_unit(patch: pytest.MonkeyPatch, fault: str) -> None:
    patch.setattr(sums, "RECORDS_PER_UNIT", (3 if fault == OF_SEVERAL_RECORDS else 1,))


def failed(seed: int, overrides: tuple[str, ...], detector: Detector, folder: Path) -> str:
    scenario = load_scenario("digits", [*overrides, f"simulation.insecure_seed={seed}"])
    checks = detector(scenario, folder / f"{detector.__name__}-{seed}", np.random.default_rng(seed))
    return " / ".join(f"{check.part}: {check.what}" for check in checks if not check.passed)


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(each, marks=[] if name_of(*each) in QUICK else [pytest.mark.slow])
        for each in PLANTED
    ],
    ids=[name_of(*each) for each in PLANTED],
)
def test_planted_fault_is_found(planted: tuple, tmp_path: Path) -> None:
    fault, detector, words, *overrides = planted
    for seed in seeds(RUNS or 1):
        with pytest.MonkeyPatch.context() as patch:
            FAULTS[fault](patch)
            if not RUNS:
                resize(patch, (*LESS, *MORE.get(fault, ())))
                of_one_kind_of_unit(patch, fault)
            found = failed(seed, overrides, detector, tmp_path)
        assert all(each in found for each in words.split("|")), found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["", *OTHER_SAMPLERS])
def test_sound_path_raises_no_alarm(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # test_audit.py has a whole audit, as users have it, of counts, epsilon and own releases as well:
    # no sampler enters those.
    if not RUNS:
        resize(monkeypatch, LEAST)
    overrides = (*CONSTANT, *OTHER_SAMPLERS[kind]) if kind else ()
    alone = (audit_counts, epsilon, audit_own_releases) if RUNS and not kind else ()
    for seed in seeds(1 if kind else 2 * RUNS or 1):
        for detector in (noise, audit_within, audit_sums, audit_one_unit, audit_replies, *alone):
            assert failed(seed, overrides, detector, tmp_path) == ""


# Steps of an epoch as 1 / q: for these many counts below 2000, int(1 / q) is one short.
LOST_STEPS = [count for count in range(1, 2000) if int(1 / (1 / count)) != count]


@pytest.mark.parametrize("count", LOST_STEPS[:5])
@pytest.mark.parametrize("divide", [lambda count: 1 / count, lambda count: 1.0, lambda count: 0.3])
def test_chain_runs_every_planned_step_whatever_the_sampling_rate(count: int, divide) -> None:
    assert (len(LOST_STEPS), LOST_STEPS[0]) == (141, 93)
    plan = chains.plan_of(privacy={"sampling_rate": divide(count)}, steps_per_round=count)
    module = build_model(LogisticModel(), Task(input_shape=(2,), classes=2), seed=0)
    records = (
        np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32),
        np.zeros(3, np.int64),
        np.arange(3),
    )
    assert chains.run(module, records, plan).sample_steps == tuple(range(count))


def test_unit_that_is_added_last_moves_no_other_units_draw() -> None:
    fewer = minibatch.poisson_units(np.random.default_rng(0), 50, 0.3)
    more = minibatch.poisson_units(np.random.default_rng(0), 51, 0.3)
    np.testing.assert_array_equal(fewer, more[more < 50])
