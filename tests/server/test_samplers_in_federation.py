"""Every sampler runs at the sites of a federation, private and not."""

import math

import numpy as np
import pytest

KINDS = ("sgld", "sgd", "adam", "sghmc", "bbp", "mc-dropout")
MODEL = [
    'model={ kind = "mlp", hidden = [8] }',
    "sites.held-out=",
    "sites.noisy-scanner=",
    "sites.rotated=",
]
MIXTURE = "aggregation.rule=mixture"
OPEN = "privacy={ sampling_rate = 0.5 }"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["sgld", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
def test_private_sampler_releases_ordinary_samples_and_its_whole_state(
    federation, kind: str
) -> None:
    run = federation(*MODEL, MIXTURE, f"sampler.kind=dp-{kind}").run()
    samples = run.posterior()
    assert {name: array.shape[1:] for name, array in samples.arrays.items()} == {
        "1.weight": (8, 64),
        "1.bias": (8,),
        "3.weight": (10, 8),
        "3.bias": (10,),
    }
    # Three samples from each of four sites, all different.
    assert len({array.tobytes() for array in samples.arrays["1.weight"]}) == 12
    rows = run.summary()["privacy"]
    assert all(0 < row["epsilon"] <= 4.0 for row in rows)
    tempered = kind in ("sgld", "sgd", "sghmc")
    assert all((row["temperature"] is not None) == tempered for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_sampler_without_privacy_costs_infinity_and_says_so(federation, kind: str) -> None:
    run = federation(*MODEL, MIXTURE, OPEN, f"sampler.kind={kind}", "training.rounds=1").run()
    for row in run.summary()["privacy"]:
        assert (row["epsilon"], row["budget"]) == ("inf", "inf")


@pytest.mark.slow
def test_state_that_a_site_released_is_where_it_goes_on(federation) -> None:
    run = federation(*MODEL, MIXTURE, "sampler.kind=dp-adam")
    states = {}

    def keep(request, reply):
        if request.metadata.message_type == "train":
            arrays = request.content["arrays"]
            states.setdefault(run.site_of(request), []).append(
                (
                    {name: array.numpy() for name, array in arrays.items()},
                    {name: array.numpy() for name, array in reply.content["arrays"].items()},
                )
            )
        return reply

    run.grid.change = keep
    run.run()
    for (first, released), (second, _) in states.values():
        assert not first["start/second_moment/1.weight"].any()
        for name, array in second.items():
            np.testing.assert_array_equal(array, released[name.replace("start/", "last/")])
        assert (second["start/second_moment/1.weight"] > 0).all()


@pytest.mark.slow
def test_chains_start_apart_and_their_cost_adds_up(federation) -> None:
    settings = [*MODEL, MIXTURE, "privacy.noise_multiplier=20.0"]
    one, two = (
        federation(*settings, f"training.chains={chains}", name=str(chains)).run()
        for chains in (1, 2)
    )
    starts = {str(number): set() for number in (1, 2, 3, 4)}
    for message in two.requests("train"):
        starts[message.metadata.group_id].add(
            message.content["arrays"]["start/parameters/1.weight"].data
        )
    assert (len(starts["1"]), len(starts["3"]), len(starts["1"] | starts["3"])) == (1, 1, 2)
    samples = [run.posterior() for run in (one, two)]
    assert len(samples[1].weights) == 2 * len(samples[0].weights)
    for alone, both in zip(one.summary()["privacy"], two.summary()["privacy"], strict=True):
        assert both["steps"] == 2 * alone["steps"]
        # Full batches: mu of Gaussian steps adds up in squares, exactly.
        assert both["mu"] == pytest.approx(math.sqrt(2) * alone["mu"])
        assert both["epsilon"] > alone["epsilon"]


@pytest.mark.slow
def test_averaged_chain_of_momentum_keeps_only_parameters_as_samples(federation) -> None:
    run = federation(
        *MODEL, "aggregation.rule=fald", "sampler.kind=dp-sgd", "sampler.momentum=0.5"
    ).run()
    assert set(run.posterior().arrays) == {"1.weight", "1.bias", "3.weight", "3.bias"}
