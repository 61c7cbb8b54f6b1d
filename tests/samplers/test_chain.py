import math
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fl_dpbayes.config.sampler import (
    SGLD,
    ConstantStepSize,
    ExponentialStepSize,
    FlatPrior,
    GaussianPrior,
)
from fl_dpbayes.config.task import MLPModel, Task
from fl_dpbayes.models.build import build_model
from fl_dpbayes.models.gaussian import normal_vectors
from fl_dpbayes.models.parameters import to_vector, vector_to_arrays
from fl_dpbayes.samplers import chain
from fl_dpbayes.samplers.chain import ChainDivergedError
from fl_dpbayes.schedules.planned import ChainStreams
from tests import chains

TASK = Task(input_shape=(4,), classes=3)
COUNT = 30


def plan_of(*, steps=12, step_size=None, prior=None, burn_in=2, thinning=3, rounds=1, **privacy):
    sampler = SGLD(
        step_size=step_size or ExponentialStepSize(initial=0.5, decay=0.9),
        prior=prior or GaussianPrior(),
    )
    return chains.plan_of(
        sampler, privacy, rounds=rounds, steps_per_round=steps, burn_in=burn_in, thinning=thinning
    )


@pytest.fixture
def module():
    return build_model(MLPModel(hidden=(5,)), TASK, seed=0)


@pytest.fixture(scope="module")
def site():
    generator = np.random.default_rng(0)
    return (
        generator.standard_normal((COUNT, 4)).astype(np.float32),
        generator.integers(0, 3, COUNT),
        np.arange(COUNT),
    )


def run(module, site, plan, *, units=COUNT, streams=(1, 2), pre_noise_seed=3, **more):
    if not isinstance(streams, ChainStreams):
        streams = chains.streams_of(*streams, pre_noise_seed, 7)
    return chains.run(module, site, plan, units=units, streams=streams, **more)


def test_samples_and_their_numbers_follow_the_plan(module, site):
    plan = plan_of()
    seen = []
    result = run(module, site, plan, on_step=lambda step, *_: seen.append(step))
    sizes = 0.5 * 0.9 ** np.arange(12)
    temperature = sizes * COUNT / (2 * (0.5 * COUNT) ** 2)
    assert seen == list(range(12))
    assert result.sample_steps == (4, 7, 10)
    assert result.samples.shape == (3, to_vector(module).numel())
    np.testing.assert_allclose(result.sample_weights, sizes[[4, 7, 10]])
    np.testing.assert_allclose(result.sample_temperatures, temperature[[4, 7, 10]])
    assert result.temperature_mean == pytest.approx((sizes * temperature).sum() / sizes.sum())


def test_stretches_keep_what_the_plan_says_and_end_with_it(module, site):
    result = run(module, site, plan_of(burn_in=0, thinning=12))
    assert result.sample_steps == (11,)
    np.testing.assert_array_equal(result.samples[0], result.last["parameters"])
    result = run(module, site, plan_of(burn_in=6), steps=range(5))
    assert result.samples.shape == (0, len(result.last["parameters"]))
    assert result.sample_steps == ()
    with pytest.raises(ValueError, match="steps 8 to 13"):
        run(module, site, plan_of(), steps=range(8, 13))


def test_same_streams_give_the_same_path_and_others_another(module, site):
    plan = plan_of(pre_noise=0.3)
    start = to_vector(module)
    first, same, noise, pre_noise = (
        run(module, site, plan, start=start, streams=(1, noise), pre_noise_seed=pre_noise).samples
        for noise, pre_noise in ((2, 3), (2, 3), (3, 3), (2, 4))
    )
    assert np.array_equal(first, same)
    assert not np.array_equal(first, noise)
    assert not np.array_equal(first, pre_noise)


@pytest.mark.parametrize("rate", [1e-9, 1.0])
def test_empty_batch_is_a_step_with_noise_and_prior(module, site, rate):
    plan = plan_of(steps=3, burn_in=0, thinning=1, sampling_rate=rate)
    empty = tuple(part[:0] for part in site)
    start = to_vector(module)
    found = run(module, empty if rate == 1.0 else site, plan, start=start)
    noise = normal_vectors(np.random.default_rng(2), start.numel(), 3)
    state = start.double().numpy()
    batch = rate * COUNT
    for number in range(3):
        size = 0.5 * 0.9**number
        state = state - size * (next(noise).numpy() / batch + state / COUNT)
    np.testing.assert_allclose(found.last["parameters"], state, rtol=1e-5)


def test_denominator_is_declared_and_never_counted(module, site, monkeypatch):
    spy = mock.Mock(wraps=chain.noisy_gradient)
    monkeypatch.setattr(chain, "noisy_gradient", spy)
    run(module, site, plan_of(), units=100)
    run(module, tuple(part[:7] for part in site), plan_of(), units=100)
    asked = [
        (call.kwargs["expected_batch_size"], call.kwargs["units"]) for call in spy.call_args_list
    ]
    assert asked == [(50.0, 100)] * 24


def test_one_record_more_moves_one_step_by_at_most_its_bound(module, site):
    # Equal noise and the same coins: what remains of a step is the clipped gradient of the record
    # that was added.
    plan = plan_of(steps=1, burn_in=0, thinning=1, clip_norm=0.1, sampling_rate=1.0)
    start = to_vector(module)
    with_it = run(module, site, plan, start=start, units=COUNT).last["parameters"]
    without = run(module, tuple(part[:-1] for part in site), plan, start=start, units=COUNT).last[
        "parameters"
    ]
    moved = np.linalg.norm(with_it.astype(np.float64) - without)
    assert 0 < moved <= 0.5 * 0.1 / COUNT * (1 + 1e-3)


def test_noise_of_a_run_is_white_over_steps_and_parameters(site):
    still = {
        "step_size": ConstantStepSize(initial=1.0),
        "prior": FlatPrior(),
        "burn_in": 0,
        "thinning": 1,
    }
    plan = plan_of(steps=400, sampling_rate=1.0, **still)
    module = build_model(MLPModel(hidden=(40,)), TASK, seed=0)
    result = run(module, tuple(part[:0] for part in site), plan, sigma=2.0)
    moves = np.diff(result.samples.astype(np.float64), axis=0) * COUNT / 2.0
    arrays = vector_to_arrays(torch.from_numpy(moves), module)
    for name, array in arrays.items():
        assert abs(array.var() - 1) <= 4 * math.sqrt(2 / array.size), name
    lagged = (moves[1:] * moves[:-1]).mean()
    assert abs(lagged) <= 4 / math.sqrt(moves[1:].size)


def test_global_generators_are_left_alone(module, site):
    torch.manual_seed(1)
    before, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    run(module, site, plan_of())
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(legacy, np.random.get_state()[1])  # noqa: NPY002


def test_divergence_is_told_and_never_returned(module, site):
    plan = plan_of(step_size=ConstantStepSize(initial=1e30))
    with pytest.raises(ChainDivergedError, match="lower step_size"):
        run(module, site, plan)


class NoWaiting(TorchDispatchMode):
    """Fails where a step reads from its device what was computed there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in (
            "_local_scalar_dense",
            "nonzero",
            "equal",
            "is_nonzero",
        ), func
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["closed form", "book-keeping", "vmap", "units"])
def test_a_step_reads_nothing_from_its_device(monkeypatch, module, site, kind):
    monkeypatch.setattr(
        "fl_dpbayes.samplers.gradients.clipping.used_rows", lambda factors: factors > 0
    )
    mode = NoWaiting()

    def begun(step, *_):
        if step == 0:
            mode.__enter__()
        elif step == 11:
            mode.__exit__(None, None, None)

    if kind != "closed form":
        module = nn.Sequential(
            *module, nn.Tanh() if kind == "vmap" else nn.Linear(3, 3), nn.PReLU()
        )
    run(module, site, plan_of(**{"units": {"pre_noise": 0.1}}.get(kind, {})), on_step=begun)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_a_step_does_not_wait_for_a_gpu(module, site):
    modes = {0: "error", 11: "default"}
    set_mode = torch.cuda.set_sync_debug_mode
    try:
        run(
            module.to("cuda"),
            site,
            plan_of(),
            on_step=lambda step, *_: step in modes and set_mode(modes[step]),
        )
    finally:
        set_mode("default")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_path_on_a_gpu_is_that_on_the_cpu(module, site):
    start = to_vector(module)
    on_cpu = run(module, site, plan_of(), start=start)
    on_gpu = run(module.to("cuda"), site, plan_of(), start=start)
    np.testing.assert_allclose(
        on_gpu.last["parameters"], on_cpu.last["parameters"], rtol=1e-3, atol=1e-4
    )
