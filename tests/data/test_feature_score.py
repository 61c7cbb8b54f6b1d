import numpy as np
import pytest

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.load import load_source, load_unscaled
from fl_dpbayes.data.partition import feature_scores, feature_total_variation


def test_images_are_scored_by_their_brightness():
    records = load_source(BuiltIn(kind="digits"), "train")
    scores = feature_scores(records, None)
    assert scores.shape == (1797,)
    assert scores[7] == pytest.approx(records.features[7].mean(), rel=1e-6)


def test_tables_are_scored_by_the_named_column(data_folder):
    records = load_unscaled(BuiltIn(kind="heart", folder=data_folder), "train")
    # Years, centred at 50 and scaled by 10.
    assert 50 + 10 * feature_scores(records, "age").mean() == pytest.approx(53, abs=1)
    assert set(feature_scores(records, "sex")) == {0.0, 1.0}
    assert set(feature_scores(records, "restecg=2")) == {0.0, 1.0}


@pytest.mark.parametrize("feature", [None, "weight"])
def test_a_table_needs_one_of_its_columns(data_folder, feature):
    records = load_unscaled(BuiltIn(kind="heart", folder=data_folder), "train")
    with pytest.raises(UserError, match=r"partition.feature is .*: name the feature .* age, sex, trestbps"):
        feature_scores(records, feature)


def test_images_have_no_columns():
    with pytest.raises(UserError, match=r"partition.feature is 'age', but the records are images.*remove the key"):
        feature_scores(load_source(BuiltIn(kind="digits"), "train"), "age")


def test_total_variation_of_a_score_by_hand():
    scores = np.arange(40.0)
    even, odd = np.arange(0, 40, 2), np.arange(1, 40, 2)
    assert feature_total_variation(scores, [even, odd]) == 0
    assert feature_total_variation(scores, [np.arange(20), np.arange(20, 40)]) == 0.5
    # One site holds the lowest two of ten bins and the other the rest, so they miss .8 and .2 of the pool.
    assert feature_total_variation(scores, [np.arange(8), np.arange(8, 40)]) == pytest.approx((0.8 + 0.2) / 2)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_total_variation_of_a_score_of_two_values(share):
    scores = np.zeros(400)
    scores[: round(400 * share)] = 1.0
    ones, zeros = np.flatnonzero(scores == 1), np.flatnonzero(scores == 0)
    # |1 - p| and |1 - (1 - p)|, by equal weights of the sites.
    assert feature_total_variation(scores, [ones, zeros]) == pytest.approx(0.5)


def test_records_outside_the_sites_do_not_count():
    scores = np.concatenate([np.arange(40.0), np.full(1000, 1e6)])
    assert feature_total_variation(scores, [np.arange(20), np.arange(20, 40)]) == 0.5
