from collections.abc import Callable
from contextlib import nullcontext
from functools import reduce

import numpy as np
import pytest
from flwr.app import Array, Message

from fl_dpbayes.calibration.bins import OUTCOME
from fl_dpbayes.calibration.federation import counts
from fl_dpbayes.calibration.federation.counts import (
    check_counts,
    check_noise,
    decisive_means,
    decisive_sites,
    dominating_site,
    empty_site,
)
from fl_dpbayes.calibration.noised_counts import CODE, COUNT_BINS, NoisedCounts, without_noise
from fl_dpbayes.calibration.release import sensitivity
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.calibration.sums import Total
from fl_dpbayes.config.names import PREDICTORS
from fl_dpbayes.report.warnings import sentence
from tests.counted import CARD, top_label


def exact(count: int):
    return from_batch(np.full((count, 2), 0.5), np.zeros(count))


def test_exact_count_is_bounded_by_the_declared_units_and_their_error() -> None:
    check_counts(CARD, [exact(10_000)])
    with pytest.raises(ValueError, match=r"counts 1e\+04 test records; 8 units give at most"):
        check_counts(CARD, [exact(5), exact(10_001)])


@pytest.mark.parametrize(
    ("cells", "complaint"),
    [
        ({(3, 0): 10_080.0}, None),
        ({(3, 0): 10_120.0}, "a sum is"),
        ({(3, 1): -80.0}, None),
        ({(3, 1): -120.0}, "a sum is -120"),
        ({(bin_, 0): 297.0 for bin_ in range(COUNT_BINS)}, None),
        ({(bin_, 0): 310.0 for bin_ in range(COUNT_BINS)}, "test records"),
        ({(3, 0): np.nan}, "a sum is nan"),
    ],
)
def test_noised_sums_are_bounded_too(
    cells: dict[tuple[int, int], float], complaint: str | None
) -> None:
    counts = np.zeros((COUNT_BINS, 2))
    for cell, value in cells.items():
        counts[cell] = value
    with pytest.raises(ValueError, match=complaint) if complaint else nullcontext():
        check_counts(CARD, [NoisedCounts(CODE @ counts, 10.0, 2)])


def test_noise_that_is_stated_too_large_is_no_excuse() -> None:
    for records in (1, 20):
        check_noise(4.0 * sensitivity(records), 4.0 * sensitivity(), 20)
    for factor, most in ((3.9, 1), (4.1, 1), (81.0, 20), (3996.0, 20)):
        with pytest.raises(ValueError, match="states noise"):
            check_noise(factor * sensitivity(), 4.0 * sensitivity(), most)


@pytest.mark.parametrize(
    ("count", "noise", "named"),
    [
        (0.0, 0.0, True),
        (1.0, 0.0, False),
        (50.0, 10.0, True),
        (60.0, 10.0, False),
    ],
)
def test_results_of_no_record_name_their_sender(count: float, noise: float, named: bool) -> None:
    counts = np.zeros((COUNT_BINS, 2))
    counts[0, 0] = count
    said = empty_site("south", NoisedCounts(CODE @ counts, noise, 2))
    assert (said is not None) == named
    assert said is None or sentence(said).startswith("south sent test results of no record")


def test_site_that_makes_a_pooled_result_vanish_is_named() -> None:
    tables = {name: site(250, 0.75, number) for number, name in enumerate("abc")}
    hidden = tables | {"liar": NoisedCounts(np.zeros((COUNT_BINS, 2)), 5000.0, 2)}
    assert counts._told(reduce(NoisedCounts.plus, hidden.values())) == {}
    said = decisive_sites("held_out", hidden)
    assert {found.site for found in said} == {"liar"}
    assert any("vanish" in sentence(found) for found in said)


@pytest.mark.slow
def test_all_zero_tables_are_told_with_their_sender_and_not_the_neighbour(federation) -> None:
    def zeros(reply: Message) -> Message:
        for name, array in list(reply.content["arrays"].items()):
            reply.content["arrays"][name] = Array(array.numpy() * 0)
        return reply

    run = federation()
    run.spoil(zeros, ["evaluate"])
    said = run.run().warnings()
    assert any(text.startswith("south sent test results of no record") for text in said)
    assert not any(
        "decides what is pooled over the" in text and "training" in text for text in said
    )


def test_noise_beyond_the_plan_s_is_rejected_with_its_sender(federation) -> None:
    run = federation(
        "evaluation={release='noised', noise_multiplier=0.2}", "simulation.cohort_epsilon=1000"
    )
    run.spoil_record(
        lambda record: record.update(noise_std=999 * record["noise_std"]), ["evaluate"]
    )
    run.run()
    summary = run.summary()
    assert any(
        "south sent no evaluation: rejected: it states noise of" in text
        for text in summary["warnings"]
    )
    rows = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    assert rows["pooled:train", "posterior"]["accuracy"] is not None


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((10, 90), None),
        ((25, 50, 25), None),
        ((25, 51, 24), "b states 51 of 100 test records and has 51%"),
        ((-3.0, -2.0, -1.0), None),
        ((-3.0, -2.0, 4.0), "c states 4 of 4"),
    ],
)
def test_site_that_holds_most_of_three_or_more_is_named(
    counts: tuple[float, ...], said: str | None
) -> None:
    found = dominating_site("train", dict(zip("abc", counts, strict=False)))
    assert found is None if said is None else said in sentence(found)


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "rejected"), [(50, False), (1e6, True)])
def test_claim_beyond_the_card_is_rejected_and_one_below_it_is_named(
    federation, factor, rejected
) -> None:
    def multiplied(reply: Message) -> Message:
        for name, array in list(reply.content["arrays"].items()):
            reply.content["arrays"][name] = Array(array.numpy() * factor)
        return reply

    run = federation()
    run.spoil(multiplied, ["evaluate"])
    said = run.run().warnings()
    assert any("south sent no evaluation: rejected: it counts" in text for text in said) == rejected
    named = [
        text
        for text in said
        if text.startswith("south states") and "pooled result of training sites" in text
    ]
    assert len(named) == (not rejected)
    rows = [
        row
        for row in run.summary()["calibration"]
        if (row["role"], row["predictor"]) == ("train", "last")
    ]
    n = {row["site"]: row["n"] for row in rows}
    assert n["pooled:train"] == sum(count for name, count in n.items() if ":" not in name)
    assert ("south" in n) != rejected


def site(count: int, accuracy: float, seed: int, noise_std: float = 0.0) -> NoisedCounts:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1, count)
    statistics = top_label(confidence, generator.random(count) < accuracy)
    sums = without_noise(statistics).sums
    return NoisedCounts(sums + noise_std * generator.standard_normal(sums.shape), noise_std, 2)


def test_one_made_up_site_of_two_or_three_is_named_behind_noise_too() -> None:
    tables = {"honest": site(2000, 0.42, 0, 5.0), "made-up": site(100_000, 0.999, 1, 5.0)}
    assert any(
        "made-up decides" in text for text in map(sentence, decisive_sites("held_out", tables))
    )
    assert not decisive_sites(
        "held_out", {"a": site(2000, 0.75, 0, 5.0), "b": site(2000, 0.75, 1, 5.0)}
    )
    two = {"honest": site(250, 0.42, 0), "made-up": site(250_000, 0.9999, 1)}
    for tables in (two, two | {"other": site(250, 0.45, 2)}):
        sentences = list(map(sentence, decisive_sites("shifted", tables)))
        assert len(sentences) == 2
        assert all(text.startswith("made-up decides what is pooled over the") for text in sentences)
        assert "accuracy is 0.999" in sentences[0]
        assert "without it" in sentences[0]


def test_every_site_is_left_out_of_the_pool_once(monkeypatch) -> None:
    told = counts._told
    seen = []
    monkeypatch.setattr(counts, "_told", lambda table: seen.append(table) or told(table))
    for number in (2, 3, 5):
        tables = {f"site {k}": site(100 + k, 0.75, k, 2.0 + k) for k in range(number)}
        decisive_sites("held_out", tables)
        plain = [[each for other, each in tables.items() if other != name] for name in tables]
        for found, members in zip(seen[-number:], plain, strict=True):
            whole = reduce(NoisedCounts.plus, members)
            np.testing.assert_allclose(found.sums, whole.sums, rtol=1e-12)
            assert found.noise_std == pytest.approx(whole.noise_std, rel=1e-12)


def test_sites_alike_are_hardly_ever_named_and_a_single_one_never() -> None:
    named = 0
    for seed in range(20):
        alike = {name: site(250, 0.75, 10 * seed + number) for number, name in enumerate("abc")}
        two = {"a": alike["a"], "b": alike["b"]}
        named += sum(bool(decisive_sites("held_out", tables)) for tables in (alike, two))
    # Of 40 federations; the metrics of one in 20 at most may differ so much by chance.
    assert named <= 2
    assert decisive_sites("held_out", {"a": site(250, 0.75, 0)}) == []


@pytest.mark.parametrize(
    ("of_sites", "named"),
    [
        ({"a": (100, 50), "b": (100, 52), "liar": (100, 5000)}, "liar"),
        ({"a": (100, 50), "liar": (100, 5000)}, "a"),
        ({"a": (100, 50), "b": (100, 52), "c": (0, 0)}, None),
        ({"a": (100, 50), "b": (0, 0)}, None),
    ],
)
def test_site_without_which_a_mean_is_another_is_named(of_sites, named: str | None) -> None:
    totals = {
        site: Total(count, total, total**2 / max(count, 1) + count)
        for site, (count, total) in of_sites.items()
    }
    found = decisive_means("train", "negative log-likelihood", totals)
    assert (found and found.site) == named


def worst_of(name: str) -> Callable[[Message], Message]:
    """Make up that a predictor was wrong with certainty at every record."""

    def made_up(reply: Message) -> Message:
        arrays = reply.content["arrays"]
        labels = arrays[f"{name}/class_wise"].numpy()[..., OUTCOME].sum(axis=1).astype(int)
        label = np.repeat(np.arange(10), labels)
        wrong = np.eye(10)[(label + 1) % 10]
        for key, array in from_batch(wrong, label).arrays().items():
            arrays[f"{name}/{key}"] = Array(array)
        return reply

    return made_up


@pytest.mark.slow
@pytest.mark.parametrize("predictor", ["last", "recalibrated"])
def test_lie_about_a_predictor_that_is_not_read_first_names_its_sender(
    federation, predictor: str
) -> None:
    run = federation("recalibration={fraction=0.2, steps=12, epsilon=50}", "privacy.epsilon=50")
    run.spoil(worst_of(predictor), ["evaluate"])
    decided = [text for text in run.run().warnings() if "over the 4 training sites" in text]
    (said,) = (text for text in decided if text.startswith("south decides what is pooled"))
    assert PREDICTORS[predictor] in said


def test_predictors_measured_on_different_records_are_rejected(federation) -> None:
    def more(reply: Message) -> Message:
        for name, array in list(reply.content["arrays"].items()):
            if name.startswith("last/"):
                reply.content["arrays"][name] = Array(3 * array.numpy())
        return reply

    run = federation()
    run.spoil(more, ["evaluate"])
    assert (
        "south sent no evaluation: rejected: it measured its predictors on different test records"
        in run.run().warnings()
    )


@pytest.mark.slow
@pytest.mark.parametrize("stated", ["none", "noised"])
def test_results_that_leave_otherwise_than_the_card_says_are_rejected(federation, stated) -> None:
    run = federation()
    run.spoil_record(lambda card: card.update(evaluation_release=stated), ["query"])
    said = f"its card says that results leave '{stated}', they are 'public'"
    assert f"south sent no evaluation: rejected: {said}" in run.run().warnings()


def test_noised_results_at_another_adjacency_are_rejected(federation) -> None:
    run = federation(
        "evaluation={release='noised', noise_multiplier=2.0}", "simulation.cohort_epsilon=1000"
    )
    run.spoil_record(lambda record: record["privacy"].update(adjacency="replace_one"), ["evaluate"])
    said = "its privacy statement does not fit its card or the plan"
    assert f"south sent no evaluation: rejected: {said}" in run.run().warnings()
