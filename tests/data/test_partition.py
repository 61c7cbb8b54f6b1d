import numpy as np
import pytest

from fl_dpbayes.config import data
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.partition import (
    feature_scores,
    feature_total_variation,
    label_total_variation,
    partition_labels,
)
from fl_dpbayes.data.records import load_unscaled
from tests.asking import refused

LABELS = np.repeat(np.arange(10), 60)

KINDS = [
    data.IIDPartition(),
    data.DirichletPartition(alpha=0.5, min_records=5),
    data.ClassesPartition(classes_per_site=4),
    data.QuantityPartition(alpha=1.0, min_records=5),
    data.FeaturePartition(strictness=0.7),
]
SCORES = np.random.default_rng(5).gamma(2.0, size=len(LABELS))


@pytest.fixture
def fewer_attempts(monkeypatch):
    monkeypatch.setattr("fl_dpbayes.data.partition.MAX_ATTEMPTS", 5)


def divide(partition, sites=5, seed=0, labels=LABELS, scores=SCORES):
    return partition_labels(labels, partition, sites, np.random.default_rng(seed), scores)


@pytest.mark.parametrize("partition", KINDS, ids=lambda partition: partition.kind)
def test_equal_seeds_give_equal_parts_and_others_do_not(partition):
    first, again, other = (
        [part.tolist() for part in divide(partition, seed=seed)] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_dirichlet_shuffles_within_a_class():
    # flwr-datasets deals each class in file order: site 0 would get the first records of every
    # class.
    parts = divide(data.DirichletPartition(alpha=100.0))
    positions = [float((part % 60).mean()) for part in parts]
    # 120 positions uniform on 0 .. 59: standard error 17.3 / sqrt(120) = 1.6.
    assert max(abs(position - 29.5) for position in positions) < 4 * 1.6


def test_heterogeneity_falls_as_alpha_grows():
    kinds = [data.DirichletPartition(alpha=alpha, min_records=1) for alpha in (0.1, 1.0, 100.0)]
    of_seeds = ([divide(kind, seed=seed) for seed in range(3)] for kind in kinds)
    realised = [
        np.mean([label_total_variation(LABELS, parts) for parts in each]) for each in of_seeds
    ]
    assert realised[0] > 0.5 > realised[1] > 0.15 > realised[2]


@pytest.mark.usefixtures("fewer_attempts")
@pytest.mark.parametrize(
    ("classes_per_site", "sites"), [(4, 5), (2, 5), (3, 4), (1, 10), (10, 1), (7, 3)]
)
def test_classes_per_site_are_kept_also_where_chance_misses_the_division(classes_per_site, sites):
    parts = divide(data.ClassesPartition(classes_per_site=classes_per_site), sites)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    assert [len(np.unique(LABELS[part])) for part in parts] == [classes_per_site] * sites


def test_quantity_changes_sizes_and_not_labels():
    parts = divide(data.QuantityPartition(alpha=0.5, min_records=10), seed=3)
    sizes = sorted(map(len, parts))
    assert sizes[0] >= 10
    assert sizes[-1] > 3 * sizes[0]
    large = max(parts, key=len)
    assert np.abs(np.bincount(LABELS[large]) / len(large) - 0.1).max() < 4 * np.sqrt(
        0.09 / len(large)
    )


def test_feature_skew_grows_with_strictness_and_leaves_labels_and_sizes():
    feature, label = [], []
    for strictness in (0.0, 0.25, 0.5, 0.75, 1.0):
        partition = data.FeaturePartition(strictness=strictness)
        divisions = [divide(partition, seed=seed) for seed in range(3)]
        assert {len(part) for parts in divisions for part in parts} == {120}
        feature.append(np.mean([feature_total_variation(SCORES, parts) for parts in divisions]))
        label.append(np.mean([label_total_variation(LABELS, parts) for parts in divisions]))
    assert all(np.diff(feature) > 0.05)
    assert feature[0] < 0.15
    # Sites are sorted: each of five holds two of ten bins.
    assert feature[-1] == pytest.approx(0.8)
    assert np.ptp(label) < 0.05


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_feature_skew_does_not_depend_on_the_scores_unit(scale):
    partition = data.FeaturePartition(strictness=0.6)
    for one, other in zip(
        divide(partition), divide(partition, scores=7 * scale + scale * SCORES), strict=True
    ):
        assert len(np.setdiff1d(one, other)) <= 1


@pytest.mark.usefixtures("fewer_attempts")
@pytest.mark.parametrize("partition", KINDS, ids=lambda partition: partition.kind)
def test_each_record_goes_to_one_site_which_gets_an_equal_share_of_each_class_on_average_over_seeds(
    partition,
):
    seeds = 8
    divisions = [divide(partition, seed=seed) for seed in range(seeds)]
    for parts in divisions:
        assert len(parts) == 5
        assert all(len(part) for part in parts)
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    shares = np.array(
        [[np.bincount(LABELS[part], minlength=10) / 60 for part in parts] for parts in divisions]
    )
    spread = shares.mean(axis=2).std(axis=0, ddof=1).max() / np.sqrt(seeds)
    assert np.abs(shares.mean(axis=(0, 2)) - 0.2).max() < 4 * spread + 1e-3


def test_label_total_variation_limits():
    labels = np.array([0, 0, 1, 1])
    assert label_total_variation(labels, [np.array([0, 2]), np.array([1, 3])]) == 0
    assert label_total_variation(labels, [np.array([0, 1]), np.array([2, 3])]) == 0.5
    # Shares (1, 0) and (1/3, 2/3) against (1/2, 1/2).
    hand = (1 / 2 + 1 / 6) / 2
    assert label_total_variation(labels, [np.array([0]), np.array([1, 2, 3])]) == pytest.approx(
        hand
    )


@pytest.mark.usefixtures("fewer_attempts")
@pytest.mark.parametrize(
    ("partition", "sites", "message"),
    [
        (
            data.IIDPartition(),
            601,
            "601 training sites of at least 1 records .* there are 600: choose fewer sites",
        ),
        (
            data.DirichletPartition(alpha=1.0, min_records=40),
            50,
            "need 2000, .*lower partition.min_records",
        ),
        (
            data.QuantityPartition(alpha=1.0, min_records=40),
            50,
            "need 2000, .*lower partition.min_records",
        ),
        (
            data.ClassesPartition(classes_per_site=11),
            5,
            "classes_per_site is 11, but there are 10 classes",
        ),
        (data.ClassesPartition(classes_per_site=1), 5, "at most 5 of 10 classes.*raise it"),
        (
            data.DirichletPartition(alpha=0.01, min_records=100),
            6,
            "partition.alpha is 0.01.*raise alpha",
        ),
        (
            data.QuantityPartition(alpha=0.01, min_records=90),
            6,
            "partition.alpha is 0.01.*raise alpha",
        ),
        (
            data.ClassesPartition(classes_per_site=10),
            61,
            "61 of them would share class ., which has 60 records: lower it",
        ),
    ],
)
def test_an_impossible_request_names_the_key_and_the_remedy(partition, sites, message):
    refused(message, divide, partition, sites)


def test_natural_is_not_divided_and_feature_skew_needs_scores_that_differ():
    with pytest.raises(ValueError, match="natural"):
        divide(data.NaturalPartition())
    with pytest.raises(ValueError, match="needs a score"):
        divide(data.FeaturePartition(strictness=0.5), scores=None)
    for feature, what in ((None, "mean pixel"), ("age", "value of 'age'")):
        said = f"all 600 records have the same {what}: choose another partition.feature"
        refused(
            said,
            divide,
            data.FeaturePartition(strictness=0.0, feature=feature),
            scores=np.full(600, 0.1),
        )


def test_images_are_scored_by_their_brightness_and_tables_by_a_column(data_folder):
    records = load_unscaled(BuiltIn(kind="digits"), "train").scaled()
    scores = feature_scores(records, None)
    assert scores.shape == (1797,)
    assert scores[7] == pytest.approx(records.features[7].mean(), rel=1e-6)
    refused(
        r"partition.feature is 'age', but the records are images.*remove the key",
        feature_scores,
        records,
        "age",
    )
    # A table by the named column.
    records = load_unscaled(BuiltIn(kind="heart", folder=data_folder), "train")
    # Years, centred at 50 and scaled by 10.
    assert 50 + 10 * feature_scores(records, "age").mean() == pytest.approx(53, abs=1)
    assert set(feature_scores(records, "sex")) == {0.0, 1.0}
    assert set(feature_scores(records, "restecg=2")) == {0.0, 1.0}
    for feature in (None, "weight"):
        refused(
            r"partition.feature is .*: name the feature .* age, sex, trestbps",
            feature_scores,
            records,
            feature,
        )


def test_total_variation_of_a_score_by_hand():
    scores = np.arange(40.0)
    even, odd = np.arange(0, 40, 2), np.arange(1, 40, 2)
    assert feature_total_variation(scores, [even, odd]) == 0
    assert feature_total_variation(scores, [np.arange(20), np.arange(20, 40)]) == 0.5
    # One site holds the lowest two of ten bins and the other the rest, so they miss .8 and .2 of
    # the pool.
    assert feature_total_variation(scores, [np.arange(8), np.arange(8, 40)]) == pytest.approx(
        (0.8 + 0.2) / 2
    )
    # Records outside the sites do not count.
    more = np.concatenate([scores, np.full(1000, 1e6)])
    assert feature_total_variation(more, [np.arange(20), np.arange(20, 40)]) == 0.5
    # Of two values: |1 - p| and |1 - (1 - p)|, by equal weights of the sites.
    for ones in (8, 200, 392):
        sites = [np.arange(ones), np.arange(ones, 400)]
        assert feature_total_variation(
            (np.arange(400) < ones).astype(float), sites
        ) == pytest.approx(0.5)
