"""Partitioned variational inference in whole runs: what is sent, what is kept, and what is left out."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, Message

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.protocol.arrays import MOST_MEAN, without_prefix
from fl_dpbayes.report.warnings import sentence
from server.federation import STRATEGIES
from server.strategies.pvi import PVIStrategy

FOUR = ["sites.held-out=", "sites.noisy-scanner=", "sites.rotated="]
TRAINING = "training={rounds=3, steps_per_round=10, burn_in=2, thinning=1}"


def warnings_of(run) -> str:
    return "\n".join(run.warnings())


def sent(message: Message, prefix: str) -> np.ndarray:
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    return np.concatenate([array.ravel() for _, array in sorted(without_prefix(prefix, arrays).items())])


@pytest.fixture(scope="module")
def watched(federations):
    """A run and its strategy."""
    strategies = []

    class Watched(PVIStrategy):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            strategies.append(self)

    run = federations("aggregation={rule='pvi', damping=0.25}", *FOUR, TRAINING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STRATEGIES, "pvi", Watched)
        run.run()
    return run, strategies[0]


def test_requests_carry_the_cavity_and_start_at_the_mean_of_q(watched) -> None:
    run, _ = watched
    first, second = run.requests("train")[:4], run.requests("train")[4:8]
    for message in first:
        assert (sent(message, "cavity/mean") == 0).all()
        assert (sent(message, "cavity/precision") == 1).all()
    precisions = np.stack([sent(message, "cavity/precision") for message in second])
    shifts = precisions * np.stack([sent(message, "cavity/mean") for message in second])
    # Each cavity is the prior times the other three factors, so their sum is 4 priors and 3 times all factors.
    precision, shift = (precisions.sum(axis=0) - 1) / 3, shifts.sum(axis=0) / 3
    assert (precisions >= 1).all()
    assert (precisions > 1).mean() > 0.5
    for message in second:
        np.testing.assert_allclose(sent(message, "start/parameters"), shift / precision, rtol=1e-3, atol=1e-4)
        plan = json.loads(str(message.content["config"]["record"]))["plan"]
        assert (plan["prior_source"], plan["chains"], plan["rounds"]) == ("cavity", 3, 1)


def test_factors_follow_from_the_bank_alone(watched) -> None:
    run, ran = watched
    restarted = PVIStrategy(ran.federation, ran.record)
    for name, array in run.posterior().arrays.items():
        np.testing.assert_array_equal(restarted.posterior().arrays[name], array)
    for name, array in ran.initial_state(1).items():
        np.testing.assert_array_equal(restarted.initial_state(1)[name], array)


def test_silent_site_has_no_factor_and_the_run_goes_on(federation) -> None:
    run = federation("aggregation.rule=pvi", *FOUR, TRAINING)
    run.silence("south", error=5)
    run.run()
    last = {run.site_of(message): message for message in run.requests("train")[-4:]}
    # The cavity of a site without a factor is q itself, which is at least as sharp as every other site's cavity.
    others = [sent(last[site], "cavity/precision") for site in last if site != "south"]
    assert all((sent(last["south"], "cavity/precision") >= other * (1 - 1e-6)).all() for other in others)
    assert len(run.posterior().arrays["1.weight"]) == 100


@pytest.mark.parametrize(
    ("change", "said"), [(lambda array: 1e-8 * array, "lies outside"), (lambda array: 0 * array, "do not vary")]
)
def test_site_whose_samples_fit_no_gaussian_is_named_and_costs_the_others_nothing(federation, change, said) -> None:
    run = federation("aggregation.rule=pvi", *FOUR, TRAINING)

    def crafted(reply: Message) -> Message:
        arrays = reply.content["arrays"]
        arrays.update({name: Array(np.float32(change(array.numpy()))) for name, array in arrays.items()})
        return reply

    run.spoil(crafted, sites=("east",))
    run.run()
    assert "east keeps its old factor" in warnings_of(run)
    assert said in warnings_of(run)
    assert np.abs(run.posterior().arrays["1.weight"]).max() < 100


def test_few_rounds_for_their_damping_are_warned_about(federation) -> None:
    # Chains that spread at a step that is short: no other warning of the rule is due.
    training = "training={rounds=2, steps_per_round=150, burn_in=50, thinning=4}"
    run = federation("aggregation={rule='pvi', damping=0.4}", *FOUR, training, "sampler.step_size.initial=0.5")
    run.run()
    assert "2 rounds at damping 0.4 use only 64% of the evidence" in warnings_of(run)
    assert "the step size is long" not in warnings_of(run)


@pytest.mark.parametrize(
    ("training", "said"),
    [
        ("{rounds=2, steps_per_round=10, burn_in=6, thinning=1}", "keep 4 samples: it needs at least 5"),
        ("{rounds=2, steps_per_round=10, burn_in=12, thinning=1}", "keep 0 samples"),
        ("{rounds=2, steps_per_round=10, burn_in=0, thinning=1, chains=2}", "set chains = 1"),
        ("{rounds=1001, steps_per_round=10, burn_in=0, thinning=1}", "at most 1000"),
    ],
)
def test_training_that_does_not_fit_is_refused_when_the_scenario_is_read(training: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load_scenario("quickstart", ["aggregation.rule=pvi", f"training={training}"])


def test_site_that_claims_to_know_too_well_does_not_make_the_others_diverge(federation) -> None:
    run = federation("aggregation.rule=pvi", *FOUR, "training={rounds=3, steps_per_round=16, burn_in=2, thinning=2}")
    generator = np.random.default_rng(0)

    def sharpened(reply: Message) -> Message:
        arrays = reply.content["arrays"]
        for name in [name for name in arrays if name.startswith("samples/")]:
            samples = arrays[name].numpy()
            narrow = samples.mean(axis=0, keepdims=True) + 1e-4 * generator.standard_normal(samples.shape)
            arrays[name] = Array(np.float32(narrow))
        return reply

    run.spoil(sharpened, sites=("west",), rounds=(1,))
    run.run()
    assert "round 1: west keeps its old factor: the planned steps are too long" in warnings_of(run)
    assert run.statuses() == dict.fromkeys(("north", "south", "east", "west"), ["OK"] * 3)


def test_site_that_goes_to_the_bound_of_cavities_does_not_end_the_round_of_the_others(watched) -> None:
    _, ran = watched
    restarted = PVIStrategy(ran.federation, ran.record)
    honest = restarted._samples("north", 1)

    def around(mean: float):
        # Wider than the prior, so that what it says counts for the mean only.
        draws = np.where(np.arange(len(honest)) % 2, 1.0, -1.0).astype(np.float32) * np.float32(1.5)
        arrays = {
            name: mean + np.ones_like(array) * draws.reshape(-1, *[1] * (array.ndim - 1))
            for name, array in honest.arrays.items()
        }
        return replace(honest, arrays=arrays, temperatures=np.ones(len(honest)))

    def factor_mean(mean: float) -> float:
        restarted._samples = lambda site, number: around(mean) if site == "south" else None
        return float(restarted._combined(restarted._prior(), ["south"], 1).factors["south"].precision_mean.max())

    furthest = MOST_MEAN
    for _ in range(3):
        furthest *= (MOST_MEAN - 0.2) / factor_mean(furthest)
    crafted = {"south": around(furthest), "north": around(5.0)}
    restarted._samples = lambda site, number: crafted.get(site)
    for site in crafted:
        restarted._combined(restarted._prior(), [site], 1)
    updated = restarted._updated(restarted._prior(), 1)
    assert set(updated.factors) == {"north"}
    assert any("round 1: south keeps its old factor" in text for text in map(sentence, ran.record.warnings))
