from pathlib import Path

import numpy as np
import pandas
import pytest

from fl_dpbayes.config.data import (
    ClassesPartition,
    DataSpec,
    DirichletPartition,
    FeaturePartition,
    IIDPartition,
    NaturalPartition,
    QuantityPartition,
    Shift,
    SiteSpec,
)
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.site_file import Policy, read_site_file
from fl_dpbayes.config.sources import BuiltIn, Table
from fl_dpbayes.data.load import load_source
from fl_dpbayes.data.site import load_site
from fl_dpbayes.data.site_ledger import cohort_of, ledger_place
from fl_dpbayes.data.virtual_site_files import write_virtual_sites
from fl_dpbayes.data.virtual_sites import plan_virtual_sites
from fl_dpbayes.privacy.ledger.ledger import Ledger

DIGITS = DataSpec(source="digits")
TRAIN = SiteSpec(role="train")
SITES = {
    "zurich": TRAIN,
    "held": SiteSpec(role="held_out", records=150),
    "bern": TRAIN,
    "fewer": SiteSpec(role="shifted", records=200, shift=Shift(kind="prevalence", severity=4)),
    "blurred": SiteSpec(role="shifted", records=100, shift=Shift(kind="blur")),
    "basel": TRAIN,
}


def plan(sites=SITES, partition=None, seed=0, data=DIGITS):
    return plan_virtual_sites(data, partition or DirichletPartition(alpha=1.0), sites, seed, None)


def write(plan, folder, **changes):
    keys = {
        "cohort": "c",
        "epsilon": 2.0,
        "delta": 1e-4,
        "adjacency": "add_or_remove_one",
        "policy": Policy(max_run_epsilon=2.0),
    }
    return write_virtual_sites(plan, folder, **(keys | changes))


@pytest.mark.parametrize(
    "partition",
    [
        IIDPartition(),
        DirichletPartition(alpha=0.5),
        ClassesPartition(classes_per_site=6),
        QuantityPartition(alpha=1.0),
        FeaturePartition(strictness=0.8),
    ],
    ids=lambda partition: partition.kind,
)
def test_written_sites_are_the_planned_ones(tmp_path, partition):
    planned = plan(partition=partition)
    paths = write(planned, tmp_path / "run" / "sites")
    assert [path.name for path in paths][:3] == ["00-zurich.toml", "01-held.toml", "02-bern.toml"]
    assert sorted(paths) == paths
    for path, expected in zip(paths, planned.sites, strict=True):
        site = load_site(read_site_file(path))
        assert (site.name, site.role) == (expected.name, expected.spec.role)
        assert site.test.unit_count == expected.test_units
        if site.role == "train":
            assert site.train is not None
            # What a virtual site declares is exact.
            assert site.units == site.train.unit_count == expected.train_units
        else:
            assert site.train is None
            assert site.units == expected.test_units


def test_each_record_is_at_one_site():
    indices = np.concatenate([site.indices for site in plan().sites])
    assert np.array_equal(np.sort(indices), np.arange(1797))


def test_a_population_shift_is_counted_in_the_plan():
    fewer = plan().sites[3]
    assert len(fewer.indices) == 200
    assert 0 < fewer.test_units < 150


def test_equal_seeds_give_equal_sites_and_others_do_not():
    first, again, other = plan(seed=1), plan(seed=1), plan(seed=2)
    for a, b, c in zip(first.sites, again.sites, other.sites, strict=True):
        assert np.array_equal(a.indices, b.indices)
        assert (a.split_key, a.shift_seed) == (b.split_key, b.shift_seed)
        assert not np.array_equal(a.indices, c.indices)
        assert a.split_key != c.split_key
    assert len({site.split_key for site in first.sites}) == len({site.shift_seed for site in first.sites}) == len(SITES)


def test_severities_have_the_same_patients(tmp_path):
    tests = []
    for severity in (1, 5):
        sites = SITES | {"blurred": SiteSpec(role="shifted", records=100, shift=Shift(kind="blur", severity=severity))}
        tests.append(load_site(read_site_file(write(plan(sites), tmp_path / str(severity))[4])).test)
    assert np.array_equal(tests[0].labels, tests[1].labels)
    assert not np.array_equal(tests[0].features, tests[1].features)


def test_site_files_hold_ledger_policy_and_settings(tmp_path):
    policy = Policy(max_run_epsilon=3.0, evaluation_release="public")
    paths = write(plan(), tmp_path / "run" / "sites", policy=policy, epsilon=3.0, insecure_seed=7, threads=2)
    site_file = read_site_file(paths[0])
    assert site_file.ledger is not None
    ledger = site_file.ledger
    assert ledger.path.resolve() == (tmp_path / "run" / "ledgers" / "zurich.sqlite").resolve()
    assert (ledger.cohort, ledger.epsilon, ledger.delta, ledger.durability) == ("c", 3.0, 1e-4, "normal")
    assert (site_file.policy, site_file.insecure_seed, site_file.threads) == (policy, 7, 2)


def test_ledgers_are_made_with_the_sites_and_stay_unless_their_making_was_cut_off(tmp_path):
    paths = write(plan(), tmp_path / "run" / "sites")
    site_file = read_site_file(paths[0])
    with Ledger.open(ledger_place(site_file.ledger), cohort_of(site_file)) as ledger:
        head = ledger.head()
    write(plan(), tmp_path / "run" / "sites")
    with Ledger.open(ledger_place(site_file.ledger), cohort_of(site_file)) as ledger:
        assert ledger.head() == head
    site_file.ledger.witness.unlink()
    write(plan(), tmp_path / "run" / "sites")
    with Ledger.open(ledger_place(site_file.ledger), cohort_of(site_file)) as ledger:
        assert ledger.head() != head


def test_runs_may_share_a_folder_of_features(tmp_path):
    own = read_site_file(write(plan(), tmp_path / "run" / "sites")[0])
    shared = read_site_file(write(plan(), tmp_path / "run" / "sites", cache_folder=tmp_path / "shared")[0])
    assert own.cache_folder.resolve() == (tmp_path / "run" / "cache").resolve()
    assert shared.cache_folder == (tmp_path / "shared").resolve()


def test_heterogeneity_is_that_of_the_training_sites():
    assert plan(partition=DirichletPartition(alpha=0.2)).label_total_variation > 0.4
    assert plan(partition=IIDPartition()).label_total_variation < 0.1


@pytest.mark.parametrize(
    "partition",
    [DirichletPartition(alpha=1.0), ClassesPartition(classes_per_site=6), QuantityPartition(alpha=1.0), IIDPartition()],
    ids=lambda partition: partition.kind,
)
def test_label_heterogeneity_is_recorded_for_each_kind(partition):
    planned = plan(partition=partition)
    labels = load_source(BuiltIn(kind="digits"), "train").labels
    train = [labels[site.indices] for site in planned.sites if site.spec.role == "train"]
    pooled = np.bincount(np.concatenate(train), minlength=10) / sum(map(len, train))
    by_hand = np.mean([np.abs(np.bincount(one, minlength=10) / len(one) - pooled).sum() / 2 for one in train])
    assert planned.label_total_variation == pytest.approx(by_hand)
    assert planned.feature_total_variation is None


def test_feature_skew_is_recorded():
    strict, loose = (plan(partition=FeaturePartition(strictness=value)) for value in (1.0, 0.0))
    # Of ten bins a third of the pool fills .3, .3, .3, .1 or .2, .3, .3, .2 of a site, which is .6 away either way.
    assert strict.feature_total_variation == pytest.approx(0.6, abs=0.02)
    assert loose.feature_total_variation < 0.1
    brightness = load_source(BuiltIn(kind="digits"), "train").features.mean(axis=(1, 2, 3))
    means = [brightness[site.indices].mean() for site in strict.sites if site.spec.role == "train"]
    assert means == sorted(means)


def test_fewer_records_are_a_subset_drawn_in_whole_units(tmp_path):
    generator = np.random.default_rng(0)
    table = pandas.DataFrame({"patient": generator.integers(0, 150, 900), "x": generator.normal(size=900)})
    table["y"] = table["patient"] % 2
    table.to_csv(tmp_path / "t.csv", index=False)
    source = Table(path=tmp_path / "t.csv", label="y", classes=2, features=("x",), unit_column="patient")
    sites = {"a": TRAIN, "b": TRAIN, "held": SiteSpec(role="held_out", records=100)}
    full, few = (plan(sites, IIDPartition(), data=DataSpec(source=source, records=most)) for most in (None, 400))
    used = np.concatenate([site.indices for site in few.sites])
    assert 400 <= len(used) == len(np.unique(used)) < 400 + table["patient"].value_counts().max()
    patients = set(table["patient"][used])
    assert table["patient"].isin(patients).sum() == len(used)
    # What is set aside does not depend on how much is left.
    assert np.array_equal(full.sites[2].indices, few.sites[2].indices)
    other = plan(sites, IIDPartition(), seed=1, data=DataSpec(source=source, records=400))
    assert set(table["patient"][np.concatenate([site.indices for site in other.sites])]) != patients


def test_fewer_records_of_natural_sites(data_folder):
    sites = dict.fromkeys(("cleveland", "va", "hungarian"), TRAIN) | {"switzerland": SiteSpec(role="held_out")}
    planned = plan_virtual_sites(DataSpec(source="heart", records=370), NaturalPartition(), sites, 0, data_folder)
    sizes = np.array([len(site.indices) for site in planned.sites])
    assert sizes.sum() == 370
    assert np.abs(sizes / 370 - np.array([303, 130, 261, 46]) / 740).max() < 4 * 0.5 / np.sqrt(740)
    with pytest.raises(UserError, match=r"data.records leaves no record to this natural site: raise it"):
        plan_virtual_sites(DataSpec(source="heart", records=1), NaturalPartition(), sites, 0, data_folder)


def test_more_records_than_there_are_cannot_be_asked_for():
    with pytest.raises(UserError, match=r"data.records is 1798, but the part 'train' has 1797 records: choose at most"):
        plan(data=DataSpec(source="digits", records=1798))
    assert sum(len(site.indices) for site in plan(data=DataSpec(source="digits", records=1797)).sites) == 1797


def test_natural_sites_are_the_data_sets_own(data_folder, tmp_path):
    sites = dict.fromkeys(("cleveland", "va", "hungarian"), TRAIN) | {"switzerland": SiteSpec(role="held_out")}
    planned = plan_virtual_sites(DataSpec(source="heart"), NaturalPartition(), sites, 0, data_folder)
    assert [len(site.indices) for site in planned.sites] == [303, 130, 261, 46]
    assert planned.unit == "patient"
    held_out = load_site(read_site_file(write(planned, tmp_path)[3]))
    assert held_out.test.unit_count == 46
    assert held_out.test.labels.mean() == pytest.approx(45 / 46)


def test_official_parts_stay_apart(data_folder, tmp_path):
    sites = {"a": TRAIN, "b": TRAIN, "validation": SiteSpec(role="held_out", part="validation"),
             "test": SiteSpec(role="shifted", part="test", records=100)}  # fmt: skip
    planned = plan_virtual_sites(DataSpec(source="pneumonia"), IIDPartition(), sites, 0, data_folder)
    assert [len(site.indices) for site in planned.sites] == [2354, 2354, 524, 100]
    site = load_site(read_site_file(write(planned, tmp_path)[3]))
    official = load_source(BuiltIn(kind="pneumonia", folder=data_folder), "test")
    assert np.array_equal(site.test.features, official.features[planned.sites[3].indices])


def test_no_patient_is_at_two_sites(tmp_path):
    generator = np.random.default_rng(0)
    table = pandas.DataFrame({"patient": generator.integers(0, 150, 900), "x": generator.normal(size=900)})
    table["y"] = table["patient"] % 2
    table.to_csv(tmp_path / "t.csv", index=False)
    source = Table(path=tmp_path / "t.csv", label="y", classes=2, features=("x",), unit_column="patient")
    sites = {"a": TRAIN, "b": TRAIN, "held": SiteSpec(role="held_out", records=100)}
    planned = plan(sites, IIDPartition(), data=DataSpec(source=source))
    patients = [set(table["patient"][site.indices]) for site in planned.sites]
    assert sum(map(len, patients)) == table["patient"].nunique()
    assert not patients[0] & patients[1]
    # Whole patients are set aside until the records suffice.
    assert 100 <= len(planned.sites[2].indices) < 100 + table["patient"].value_counts().max()
    site = load_site(read_site_file(write(planned, tmp_path / "sites")[0]))
    assert site.train is not None
    assert site.train.unit_count + site.test.unit_count == len(patients[0])


@pytest.mark.parametrize(
    ("sites", "partition", "message"),
    [
        ({"a": TRAIN, "b": SiteSpec(role="held_out")}, IIDPartition(), "sites.b.records is missing"),
        ({"a": TRAIN, "b": SiteSpec(role="held_out", records=1798)}, IIDPartition(), "1797 records of the part"),
        ({"a": TRAIN, "b": SiteSpec(role="held_out", records=1797)}, IIDPartition(), "there are 0"),
        ({"a": TRAIN, "b": SiteSpec(role="held_out", part="test")}, IIDPartition(), "no part 'test'"),
        ({f"s{i}": TRAIN for i in range(50)}, DirichletPartition(alpha=1.0, min_records=40), "partition.min_records"),
        ({"a": TRAIN}, NaturalPartition(), "does not say which site"),
    ],
)
def test_an_impossible_plan_names_the_key_and_the_remedy(sites, partition, message):
    with pytest.raises(UserError, match=message):
        plan(sites, partition)


def test_a_site_with_nothing_to_train_on_is_refused():
    sites = {f"s{i}": TRAIN for i in range(600)}
    with pytest.raises(UserError, match=r"none of its .* units is left to train on.*data.test_fraction"):
        plan(sites, IIDPartition(), data=DataSpec(source="digits", test_fraction=0.9))


@pytest.mark.parametrize(
    ("sites", "message"),
    [
        ({"cleveland": TRAIN, "zurich": TRAIN}, "sites.zurich.*choose among cleveland, hungarian, switzerland, va"),
        ({"cleveland": TRAIN, "va": SiteSpec(role="held_out", records=9)}, "sites.va.records.*remove the key"),
    ],
)
def test_natural_sites_are_checked(data_folder, sites, message):
    with pytest.raises(UserError, match=message):
        plan_virtual_sites(DataSpec(source="heart"), NaturalPartition(), sites, 0, data_folder)


def test_the_data_folder_may_come_from_the_environment(data_folder):
    sites = {"a": TRAIN}
    planned = plan_virtual_sites(DataSpec(source="heart"), IIDPartition(), sites, 0, None)
    assert planned.source.folder == Path(data_folder).resolve()


def test_training_sites_keep_a_share_for_recalibration(tmp_path):
    planned = plan_virtual_sites(DIGITS, IIDPartition(), SITES, 0, None, 0.25)
    for site, path in zip(planned.sites, write(planned, tmp_path), strict=True):
        loaded = load_site(read_site_file(path))
        if site.spec.role != "train":
            assert (loaded.recalibration, site.recalibration_units) == (None, 0)
            continue
        counts = (loaded.train.unit_count, loaded.test.unit_count, loaded.recalibration.unit_count)
        assert counts == (site.train_units, site.test_units, site.recalibration_units)
        assert sum(counts) == len(site.indices)
