import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_dpbayes.calibration.bins import FINE_BINS, bin_index
from fl_dpbayes.calibration.federation.rows import conformal_rows, mean_rows, separation
from fl_dpbayes.calibration.federation.subgroups import Place
from fl_dpbayes.calibration.noised_counts import COUNT_BINS, NoisedCounts
from fl_dpbayes.calibration.records import CalibrationRecord, metrics_hidden_by_noise
from fl_dpbayes.calibration.statistics import from_batch
from fl_dpbayes.report.answer import answer
from fl_dpbayes.report.run_files import read_csv
from fl_dpbayes.report.summary import parse_summary
from tests.counted import empty


def row(site, role="train", predictor="posterior", **values):
    measured = {
        "samples": 5,
        "n": 10,
        "intervals": {"ece": (0, 1)},
        "ece": 0.2,
        "nll_clipped": 3,
        "auroc": 0.5,
        "net_benefit": [{"threshold": 0.5, "model": 0.1}],
        "ece_if_calibrated_high": 0.5,
    }
    return CalibrationRecord.model_validate(
        {"site": site, "role": role, "predictor": predictor} | measured | values
    )


def test_what_noise_hid_at_a_site_is_told_of_a_row_over_sites_that_has_no_value_of_it() -> None:
    exact = row("a")
    some = row("b", cannot_tell=["auroc", "nll"], auroc=None)
    assert metrics_hidden_by_noise([exact, row("c")], {"auroc": None}) is None
    assert metrics_hidden_by_noise([exact, some], {"auroc": None, "nll": 0.4}) == ["auroc"]
    assert metrics_hidden_by_noise([exact, row("d", cannot_tell=[])], {}) == []


def test_mean_counts_each_site_the_same() -> None:
    two = [row("a", n=1000, ece=0.2), row("b", n=10, ece=0.4)]
    (mean,) = mean_rows([*two, row("c", "held_out"), row("b", predictor="last")])
    assert {name: value for name, value in mean if value is not None} == {
        "site": "mean:train",
        "role": "train",
        "predictor": "posterior",
        "samples": 5,
        "n": 1010,
        "ece": pytest.approx(0.3),
        "auroc": 0.5,
        "intervals": {},
    }
    assert {"nll_clipped", "net_benefit", "brier"} <= mean.model_fields_set
    assert "ece_if_calibrated_high" not in mean.model_fields_set


@pytest.mark.parametrize(
    ("name", "pair", "mean"),
    [
        ("auroc_bounds", ((0.4, 0.6), (0.6, 1.0)), pytest.approx((0.5, 0.8))),
        ("auroc_bounds", ((0.4, 0.6), None), None),
        ("auroc", (None, 0.5), None),
    ],
)
def test_bounds_are_averaged_end_by_end_and_what_is_undefined_at_one_site_has_no_mean(
    name, pair, mean
) -> None:
    rows = [row(site, **{name: value}) for site, value in zip("ab", pair, strict=True)]
    assert getattr(mean_rows(rows)[0], name) == mean


def assert_sets_of_a_run(summary, parsed) -> None:
    places = {(row["site"], row["predictor"], row["weights"]) for row in summary["conformal"]}
    sites = ("pooled:held_out", "pooled:shifted", "held-out", "noisy-scanner", "rotated")
    assert places >= {
        (place, predictor, "none") for place in sites for predictor in ("posterior", "last")
    }
    assert not any("estimated" in weights for *_, weights in places)  # ten classes
    assert all(
        1 <= row["size"] + 1 <= 11 and row["n_calibration"] > 0 for row in summary["conformal"]
    )
    assert len(parsed.conformal) == len(summary["conformal"])


def test_a_run_shows_means_takes_none_for_a_site_and_holds_sets_of_its_exact_sums(
    federation,
) -> None:
    run = federation().run()
    summary = run.summary()
    rows = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    trained = [
        row for row in summary["calibration"] if row["role"] == "train" and ":" not in row["site"]
    ]
    last = [row for row in trained if row["predictor"] == "last"]
    assert len(last) >= 2
    mean = rows["mean:train", "last"]
    assert mean["ece"] == pytest.approx(sum(row["ece"] for row in last) / len(last))
    assert mean["n"] == rows["pooled:train", "last"]["n"]
    # One site has no mean.
    assert ("mean:held_out", "last") not in rows
    assert all(":" not in site["name"] and site["test_n"] for site in summary["sites"])
    assert [line["site"] for line in read_csv(run.folder / "calibration.csv")].count(
        "mean:train"
    ) == 2
    without = {**summary, "calibration": [row for row in summary["calibration"] if row is not mean]}
    assert str(answer(parse_summary(summary))) == str(answer(parse_summary(without)))
    parsed = parse_summary(summary)
    assert all(place.over != "mean" for place in parsed.places)
    assert_sets_of_a_run(summary, parsed)


def site(seed: int, count: int, prevalence: float):
    """Two classes whose predictions are calibrated at a prevalence of .2."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(count) < prevalence).astype(np.int64)
    p = 1 / (1 + np.exp(-generator.normal(2.0 * labels - 1.0, 2**0.5)) * 4)
    return from_batch(np.stack([1 - p, p], axis=1), labels)


NOISED = NoisedCounts(np.ones((COUNT_BINS, 2)), 1.0, 2)


def test_every_place_that_did_not_train_has_rows_per_predictor_and_weights() -> None:
    train, away, shifted = site(0, 4000, 0.2), site(1, 4000, 0.2), site(2, 4000, 0.8)
    rows = conformal_rows(
        [
            Place("pooled:train", "train", "posterior", train),
            Place("pooled:held_out", "held_out", "posterior", away),
            Place("pooled:held_out", "held_out", "recalibrated", away),
            Place("north", "train", "posterior", train),
            Place("away", "held_out", "posterior", away),
            Place("shifted", "shifted", "posterior", shifted),
            Place("shifted", "shifted", "last", shifted),
        ]
    )
    weights, places = (
        ("none", "label-shift", "label-shift-estimated"),
        ("pooled:held_out", "away", "shifted"),
    )
    assert [(row.site, row.weights) for row in rows] == [
        (place, name) for place in places for name in weights
    ]
    by = {(row.site, row.weights): row for row in rows}
    assert by["away", "none"].coverage == pytest.approx(0.9, abs=0.03)
    # Four times the prevalence: unweighted sets miss.
    assert by["shifted", "none"].interval[1] < 0.9
    for name in weights[1:]:
        assert by["shifted", name].coverage == pytest.approx(0.9, abs=0.03)
        assert by["shifted", name].size > 0
    assert (by["away", "none"].n, by["away", "none"].n_calibration) == (4000, 4000)


def test_noised_or_missing_sums_have_no_rows_and_a_class_that_training_lacks_no_weights_limit() -> (
    None
):
    def weights(train, away):
        places = [Place("away", "held_out", "last", away)]
        if train is not None:
            places.insert(0, Place("pooled:train", "train", "last", train))
        return [row.weights for row in conformal_rows(places)]

    exact = site(3, 100, 0.5)
    for train, away in ((NOISED, exact), (exact, NOISED), (exact, empty(2)), (None, exact)):
        assert weights(train, away) == []
    assert weights(from_batch([[0.3, 0.7]] * 20, [1] * 20), exact) == ["none"]


def test_noised_run_has_no_rows(federation) -> None:
    run = federation(
        "evaluation={release='noised', noise_multiplier=2.0}", "simulation.cohort_epsilon=8"
    ).run()
    summary = run.summary()
    assert summary["conformal"] == summary["subgroups"] == []
    assert summary["shift_detection"]
    assert all(
        row["auroc"] is None and row["n_reference"] is None for row in summary["shift_detection"]
    )
    row = summary["calibration"][0]
    for metric in ("aurc", "net_benefit", "auroc_bounds", "ece_10"):
        assert row[metric] is None


def histogram(values, bins=FINE_BINS):
    return np.bincount(bin_index(np.clip(values, 0, 1), bins), minlength=bins).astype(float)


def area(first, second):
    pairs = np.asarray(second)[:, None] - np.asarray(first)
    return float((pairs > 0).mean() + (pairs == 0).mean() / 2)


def test_ends_limit():
    one, other = np.array([50.0, 0]), np.array([0, 50.0])
    apart, tied = separation(one, other), separation(one, one)
    assert (apart.bounds.low, apart.value, apart.bounds.high, apart.interval.high) == (1, 1, 1, 1)
    assert 0.9 < apart.interval.low < 0.95
    assert (tied.bounds.low, tied.value, tied.bounds.high, tied.interval) == (0, 0.5, 1, (0, 1))
    for first in (np.zeros(2), one):
        assert separation(first, np.zeros(2)) is separation(np.zeros(2), first) is None


@pytest.mark.slow
@given(
    st.integers(0, 10_000),
    st.integers(1, 60),
    st.integers(1, 60),
    st.sampled_from([8, 60, FINE_BINS]),
)
def test_bounds_property_hold_the_area_of_unbinned_values(seed, m, n, bins):
    generator = np.random.default_rng(seed)
    first, second = generator.beta(1, 5, m), generator.beta(2, 3, n)
    found = separation(histogram(first, bins), histogram(second, bins))
    assert found.bounds.low - 1e-12 <= area(first, second) <= found.bounds.high + 1e-12
    assert found.value == pytest.approx(area(bin_index(first, bins), bin_index(second, bins)))
    assert (
        found.interval.low
        <= found.bounds.low
        <= found.value
        <= found.bounds.high
        <= found.interval.high
    )


def two_points(share):
    return lambda g, k: np.where(g.random(k) < share, 0.05, 0.95) + 1e-3 * g.random(k)


LAWS = {
    "alike": (lambda g, k: g.beta(1, 9, k), lambda g, k: g.beta(1, 9, k)),
    "shifted": (lambda g, k: g.beta(1, 9, k), lambda g, k: g.beta(2, 6, k)),
    "far": (lambda g, k: g.beta(1, 20, k), lambda g, k: g.beta(6, 6, k)),
    "wider": (
        lambda g, k: 0.3 + 0.02 * g.standard_normal(k),
        lambda g, k: 0.3 + 0.1 * g.standard_normal(k),
    ),
    "two points": (lambda g, k: g.beta(5, 5, k), two_points(0.5)),
    "narrow above": (
        lambda g, k: 0.3 + 0.1 * g.standard_normal(k),
        lambda g, k: 0.45 + 0.02 * g.standard_normal(k),
    ),
    "rare": (two_points(0.97), lambda g, k: 0.4 + 0.1 * g.random(k)),
}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(30, 30), (300, 40), (40, 300)], ids=str)
@pytest.mark.parametrize("name", LAWS)
def test_interval_of_the_separation_covers(name, sizes):
    first, second = LAWS[name]
    generator = np.random.default_rng(7)
    whole = separation(
        histogram(first(generator, 200_000), 100_000),
        histogram(second(generator, 200_000), 100_000),
    )
    replicates, covered = 250, 0
    for _ in range(replicates):
        found = separation(
            histogram(first(generator, sizes[0])), histogram(second(generator, sizes[1]))
        )
        covered += found.interval.low <= whole.value <= found.interval.high
    error = (0.93 * 0.07 / replicates) ** 0.5
    assert covered / replicates >= 0.93 - 3 * error
