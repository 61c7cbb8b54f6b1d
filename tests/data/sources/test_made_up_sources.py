"""What made-up sources have in common: bounds, seeds, parts, and a place in a simulation."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from fl_dpbayes.config.data import (
    DataSpec,
    DirichletPartition,
    IIDPartition,
    NaturalPartition,
    Shift,
    SiteSpec,
)
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.sources import Logistic2D, Radiographs
from fl_dpbayes.data.load import load_source
from fl_dpbayes.data.sources import radiographs

SOURCES = [
    Logistic2D(records=3000, test_records=600, sites=3, seed=1),
    Radiographs(records=3000, test_records=600, sites=3, side=12, seed=1),
]
TRAIN = SiteSpec(role="train")
SITES = {
    "site-1": TRAIN,
    "site-2": SiteSpec(role="held_out", part="test"),
    "site-3": SiteSpec(role="shifted", shift=Shift(kind="prevalence", severity=2)),
}


def by_kind(value):
    return value.kind


@pytest.mark.parametrize("source", SOURCES, ids=by_kind)
def test_equal_seeds_give_equal_records_and_parts_differ(source):
    first = load_source(source, "train")
    radiographs.load.cache_clear()
    again = load_source(source, "train")
    assert first.labels is not again.labels
    np.testing.assert_array_equal(first.features, again.features)
    np.testing.assert_array_equal(first.labels, again.labels)
    other = load_source(source.model_copy(update={"seed": 2}), "train")
    assert not np.array_equal(first.labels, other.labels)
    assert not np.array_equal(first.labels[:600], load_source(source, "test").labels)
    with pytest.raises(UserError, match="has no part 'validation': choose train or test"):
        load_source(source, "validation")


@pytest.mark.parametrize("source", SOURCES, ids=by_kind)
def test_a_name_alone_is_a_source(source):
    assert DataSpec(source=source.kind).source == type(source)()
    assert source.with_place(Path.resolve) == source.located(None) == source


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kind": "logistic-2d", "records": 5, "sites": 6}, "records is 5 for 6 sites"),
        ({"kind": "logistic-2d", "records": 2_000_000}, "less than or equal to 1000000"),
        ({"kind": "logistic-2d", "heterogeneity": -1}, "greater than or equal to 0"),
        ({"kind": "logistic-2d", "side": 28}, "Extra inputs"),
        ({"kind": "radiographs", "side": 7}, "greater than or equal to 8"),
        ({"kind": "radiographs", "side": 225}, "less than or equal to 224"),
        ({"kind": "radiographs", "side": 224, "records": 12_000}, "at side 224 at most 10699 are made"),
    ],
)
def test_bounds(keys, message):
    with pytest.raises(ValidationError, match=message):
        DataSpec(source=keys)


@pytest.mark.parametrize("source", SOURCES, ids=by_kind)
def test_natural_sites_travel_by_site_file_with_their_truth(source, tmp_path, deal):
    dealt = deal(SITES, NaturalPartition(), DataSpec(source=source))
    assert dealt.plan.source == source
    train, held_out, shifted = dealt.load(tmp_path)
    everything = load_source(source, "train")
    expected = everything.subset(everything.natural_site == "site-1")
    np.testing.assert_array_equal(
        np.sort(np.concatenate([train.train.truth[:, 1], train.test.truth[:, 1]])), np.sort(expected.truth[:, 1])
    )
    test = load_source(source, "test")
    np.testing.assert_array_equal(held_out.test.truth, test.subset(test.natural_site == "site-2").truth)
    assert len(shifted.test.labels) < 1000
    assert shifted.test.truth.shape == (len(shifted.test.labels), 2)


@pytest.mark.parametrize("partition", [IIDPartition(), DirichletPartition(alpha=0.5)], ids=by_kind)
@pytest.mark.parametrize("source", SOURCES, ids=by_kind)
def test_other_partitions_deal_the_records_too(source, partition, check_truth, deal):
    sites = {"north": TRAIN, "south": TRAIN, "away": SiteSpec(role="held_out", part="test", records=100)}
    plan = deal(sites, partition, DataSpec(source=source)).plan
    dealt = np.concatenate([site.indices for site in plan.sites if site.spec.role == "train"])
    assert np.array_equal(np.sort(dealt), np.arange(3000))
    records = load_source(source, "train")
    for site in plan.sites[:2]:
        assert records.subset(site.indices).truth.shape == (len(site.indices), 2)
    if partition.kind == "iid":
        check_truth(records.subset(plan.sites[0].indices))
