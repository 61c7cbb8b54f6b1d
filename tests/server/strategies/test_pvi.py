"""Partitioned variational inference in whole runs: what is sent, what is kept, and what is left out."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, Message
from scipy.linalg import hadamard

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.data.site import SiteSplit
from fl_dpbayes.posterior.natural import NaturalGaussian
from fl_dpbayes.posterior.rules.pvi import PVIState
from fl_dpbayes.protocol.arrays import MOST_MEAN, without_prefix
from fl_dpbayes.report.warnings import sentence
from fl_dpbayes.samplers.minibatch import TrainingRecords
from server.federation import STRATEGIES
from server.strategies.pvi import PVIStrategy

FOUR = ["sites.held-out=", "sites.noisy-scanner=", "sites.rotated="]
TRAINING = "training={rounds=3, steps_per_round=10, burn_in=2, thinning=1}"


def warnings_of(run) -> str:
    return "\n".join(run.warnings())


def sent(message: Message, prefix: str) -> np.ndarray:
    arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
    return np.concatenate([array.ravel() for _, array in sorted(without_prefix(prefix, arrays).items())])


def watched(make, *overrides: str):
    """A run and its strategy."""
    strategies = []

    class Watched(PVIStrategy):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            strategies.append(self)

    run = make(*overrides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STRATEGIES, "pvi", Watched)
        run.run()
    return run, strategies[0]


@pytest.fixture(scope="module")
def plain(federations):
    return watched(federations, "aggregation={rule='pvi', damping=0.25}", *FOUR, TRAINING)


def test_requests_carry_the_cavity_and_start_at_the_mean_of_q(plain) -> None:
    run, _ = plain
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


def test_factors_follow_from_the_bank_alone(plain) -> None:
    run, ran = plain
    restarted = PVIStrategy(ran.federation, ran.record)
    for name, array in run.posterior().arrays.items():
        np.testing.assert_array_equal(restarted.posterior().arrays[name], array)
    for name, array in ran.initial_state(1).items():
        np.testing.assert_array_equal(restarted.initial_state(1)[name], array)


@pytest.mark.slow
def test_silent_site_has_no_factor_and_the_run_goes_on(federation) -> None:
    run = federation("aggregation.rule=pvi", *FOUR, TRAINING)
    run.silence("south", error=5)
    run.run()
    last = {run.site_of(message): message for message in run.requests("train")[-4:]}
    # The cavity of a site without a factor is q itself, which is at least as sharp as every other site's cavity.
    others = [sent(last[site], "cavity/precision") for site in last if site != "south"]
    assert all((sent(last["south"], "cavity/precision") >= other * (1 - 1e-6)).all() for other in others)
    assert len(run.posterior().arrays["1.weight"]) == 100


@pytest.mark.slow
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


@pytest.mark.slow
def test_few_rounds_for_their_damping_are_warned_about(federation) -> None:
    # Chains that spread at a step that is short: no other warning of the rule is due.
    training = "training={rounds=2, steps_per_round=150, burn_in=50, thinning=4}"
    run = federation("aggregation={rule='pvi', damping=0.4}", *FOUR, training, "sampler.step_size.initial=0.5").run()
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


@pytest.mark.slow
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


def test_site_that_goes_to_the_bound_of_cavities_does_not_end_the_round_of_the_others(plain) -> None:
    _, ran = plain
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


@pytest.mark.parametrize(("rounds", "negative"), [(2, {}), (2, {"north": 1, "east": 3}), (20, {"east": 3})])
def test_damping_is_raised_or_lowered_never_both(rounds: int, negative: dict[str, int]) -> None:
    state = PVIState(NaturalGaussian(np.ones(5), np.zeros(5)), negative=negative)
    strategy = SimpleNamespace(_damping=0.25, _refined=state, plan=SimpleNamespace(total_rounds=rounds))
    text = " ".join(map(sentence, PVIStrategy._factor_warnings(strategy)))  # type: ignore[arg-type]
    assert ("or raise damping" in text) == (rounds == 2 and not negative)
    assert ("lower the damping" in text) == (rounds == 20)
    both = "do not raise damping, since the factors are noisy (3 of 5 directions of negative precision at east)"
    assert (both in text) == (rounds == 2 and bool(negative))


# On linear regression, through the messages of a whole federation.
#
# loss_i = sum_c (x_i w_c + b_c - y_i)^2 / 2 at each site, X = (1, x) with orthogonal columns, X' X = diag(J_k). The ten
# outputs are ten repetitions of one problem. A site's chain with step a under the cavity (L, h) has the stationary law
# N(m, T / P), P = F (1 - a F / (2 n)), F = L + J_k, m = (h + X' y) / F: at temperature 1 its precision is that of its
# posterior but for the step.

PIXELS, ROWS, STEP_SIZE, PRIOR_PRECISION = 64, 128, 0.2, 200.0
SITES = ("north", "south", "east", "west")


def site_data() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(8)
    truth = 0.3 * generator.normal(size=PIXELS + 1)
    data = {}
    for site in SITES:
        columns = hadamard(ROWS)[:, : PIXELS + 1] * np.sqrt(generator.uniform(100, 200, PIXELS + 1) / ROWS)
        columns[:, 0] = 1.0
        own = truth + 0.1 * generator.normal(size=PIXELS + 1)
        data[site] = columns, columns @ own + generator.normal(size=ROWS)
    return data


DATA = site_data()
INFORMATION = {site: np.square(columns).sum(axis=0) for site, (columns, _) in DATA.items()}
EVIDENCE = {site: columns.T @ targets for site, (columns, targets) in DATA.items()}


def part_of(site_file, model, part) -> SiteSplit:
    columns, targets = DATA[site_file.name]
    pixels = columns[:, 1:].reshape(ROWS, *part.features.shape[1:]).astype(np.float32)
    return SiteSplit(features=pixels, labels=targets.astype(np.float32), unit_index=np.arange(ROWS), unit_count=ROWS)


def squared_error(outputs, targets):
    return (outputs - targets[:, None]).square().sum() / 2


def predicted(units: dict[str, int], step_size: float, damping: float, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Precision and mean of q by the recursion of its two natural parameters."""
    precisions = {site: np.zeros(PIXELS + 1) for site in SITES}
    shifts = {site: np.zeros(PIXELS + 1) for site in SITES}
    for _ in range(rounds):
        total, shift = PRIOR_PRECISION + sum(precisions.values()), sum(shifts.values())
        for site in SITES:
            target = total - precisions[site] + INFORMATION[site]
            mean = (shift - shifts[site] + EVIDENCE[site]) / target
            law = target * (1 - step_size * target / (2 * units[site]))
            precisions[site] = precisions[site] + damping * (law - total)
            shifts[site] = shifts[site] + damping * (law * mean - shift)
    precision = PRIOR_PRECISION + sum(precisions.values())
    return precision, sum(shifts.values()) / precision


def assert_centred(values: np.ndarray) -> None:
    assert abs(values.mean()) < 4 * values.std(ddof=1) / np.sqrt(values.size)


def refined(federation, monkeypatch: pytest.MonkeyPatch, settings: str, rounds: int, temperature: float) -> PVIStrategy:
    """Run it; return the strategy, which holds q."""
    monkeypatch.setattr("clients.train.model_inputs", part_of)
    monkeypatch.setattr("clients.train.TrainingRecords", partial(TrainingRecords, loss=squared_error))
    _, strategy = watched(
        federation,
        f"aggregation={{rule='pvi', {settings}}}",
        *(f"sites.{name}=" for name in ("held-out", "noisy-scanner", "rotated")),
        f"training={{rounds={rounds}, steps_per_round=640, burn_in=40, thinning=6}}",
        f"sampler={{kind='sgld', step_size={{kind='constant', initial={STEP_SIZE}}}, "
        f"prior={{kind='gaussian', scale={PRIOR_PRECISION**-0.5!r}}}}}",
        f"privacy={{kind='none', sampling_rate=1.0, temperature={temperature}, delta=1e-3}}",
    )
    return strategy


def by_output(vector: np.ndarray) -> np.ndarray:
    """Put the flat vector (weights, biases) into one row (bias, pixels) per output."""
    weights, biases = np.split(vector, [10 * PIXELS])
    return np.concatenate([biases[:, None], weights.reshape(10, PIXELS)], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(("damping", "rounds", "temperature"), [(0.4, 6, 1.0), (0.4, 2, 2.5)])
def test_federation_lands_on_the_predicted_posterior(
    federation, monkeypatch: pytest.MonkeyPatch, damping: float, rounds: int, temperature: float
) -> None:
    strategy = refined(federation, monkeypatch, f"damping={damping}, draws=4000", rounds, temperature)
    assert any(
        "the step size is long for q's largest precision" in text for text in map(sentence, strategy.record.warnings)
    )
    units = {member.card.name: member.card.units for member in strategy.federation.roster.training}
    precision, mean = predicted(units, STEP_SIZE, damping, rounds)
    draws = strategy.posterior()
    q = strategy._refined.posterior
    assert_centred(by_output(q.precision) / precision - 1)
    assert_centred((by_output(q.mean) - mean) * np.sqrt(precision))
    weights = draws.arrays["1.weight"].reshape(4000, -1).astype(np.float64)
    whitened = (weights - q.mean[: 10 * PIXELS]) * np.sqrt(q.precision[: 10 * PIXELS])
    assert abs(whitened.mean()) < 4 / np.sqrt(whitened.size)
    assert abs(whitened.var() - 1) < 4 * np.sqrt(2 / whitened.size)


def test_prediction_without_a_step_is_the_posterior_given_all_records() -> None:
    units = dict.fromkeys(SITES, 200)
    exact = PRIOR_PRECISION + sum(INFORMATION.values())
    for rounds, damping in ((60, 0.4), (1, 1.0)):
        precision, mean = predicted(units, 0.0, damping, rounds)
        np.testing.assert_allclose(precision, exact, rtol=1e-10)
        np.testing.assert_allclose(mean, sum(EVIDENCE.values()) / exact, rtol=1e-10)
    precision, _ = predicted(units, 0.0, 0.4, 2)
    np.testing.assert_allclose(precision, PRIOR_PRECISION + 0.64 * sum(INFORMATION.values()), rtol=1e-10)
