"""From a scenario to virtual sites: whose records are whose, what is checked first, and what is written down."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas
import pytest
import safetensors.torch
import torch
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from fl_dpbayes.config.data import (
    DataSpec,
    Partition,
    Shift,
    SiteSpec,
    check_shared_records,
    roles_sharing_records,
)
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.config.sources import BuiltIn, Table
from fl_dpbayes.data.partition import label_total_variation
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.data.simulation import plan_sites, prepare_simulation
from fl_dpbayes.data.site_ledger import cohort_of, ledger_place
from fl_dpbayes.engine.simulate import simulate
from fl_dpbayes.files.run_store import RunStore
from fl_dpbayes.predict.stored_posterior import predict_records
from fl_dpbayes.privacy.ledger.ledger import Ledger
from tests.asking import refused

TRAIN = SiteSpec(role="train")
HELD = SiteSpec(role="held_out", records=150)
SITES = {
    "zurich": TRAIN,
    "held": HELD,
    "bern": TRAIN,
    "fewer": SiteSpec(role="shifted", records=200, shift=Shift(kind="prevalence", severity=4)),
    "blurred": SiteSpec(role="shifted", records=100, shift=Shift(kind="blur")),
    "basel": TRAIN,
}
HEART = DataSpec(source="heart")
HOSPITALS = dict.fromkeys(("cleveland", "va", "hungarian"), TRAIN) | {
    "switzerland": SiteSpec(role="held_out")
}


def divided(kind, **keys):
    return TypeAdapter(Partition).validate_python({"kind": kind, **keys})


IID, NATURAL = divided("iid"), divided("natural")
KINDS = {
    "iid": {},
    "dirichlet": {"alpha": 0.5},
    "classes": {"classes_per_site": 6},
    "quantity": {"alpha": 1.0},
    "feature": {"strictness": 0.8},
}


@pytest.mark.parametrize("kind", KINDS)
def test_written_sites_are_the_planned_ones(tmp_path, deal, kind):
    kept = "recalibration={method='temperature', fraction=0.25}"
    more = {"recalibration": load_scenario("digits", [kept]).recalibration} if kind == "iid" else {}
    dealt = deal(SITES, divided(kind, **KINDS[kind]), **more)
    loaded = dealt.load(tmp_path)
    paths = sorted((tmp_path / "sites").glob("*.toml"))
    assert [path.name for path in paths][:3] == ["00-zurich.toml", "01-held.toml", "02-bern.toml"]
    for site, expected in zip(loaded, dealt.plan.sites, strict=True):
        assert (site.name, site.role) == (expected.name, expected.spec.role)
        assert site.test.unit_count == expected.test_units
        # What a virtual site declares is exact.
        assert site.units == (expected.train_units if site.role == "train" else expected.test_units)
        assert (0 if site.train is None else site.train.unit_count) == expected.train_units
        found = 0 if site.recalibration is None else site.recalibration.unit_count
        assert found == expected.recalibration_units
        assert (found > 0) == (kind == "iid" and site.role == "train")
    # Each record is at one site.
    indices = np.concatenate([site.indices for site in dealt.plan.sites])
    assert np.array_equal(np.sort(indices), np.arange(1797))
    # A population shift is counted in the plan.
    fewer = dealt.plan.sites[3]
    assert len(fewer.indices) == 200
    assert 0 < fewer.test_units < 150
    labels = load_unscaled(BuiltIn(kind="digits"), "train").scaled().labels
    variation = label_total_variation(
        labels, [site.indices for site in dealt.plan.sites if site.spec == TRAIN]
    )
    assert dealt.plan.label_total_variation == pytest.approx(variation)
    assert (dealt.plan.feature_total_variation is not None) == (kind == "feature")


def test_equal_seeds_give_equal_sites_and_others_do_not(deal):
    first, again, other = (deal(SITES, seed=seed).plan for seed in (1, 1, 2))
    for a, b, c in zip(first.sites, again.sites, other.sites, strict=True):
        assert np.array_equal(a.indices, b.indices)
        assert (a.split_key, a.shift_seed) == (b.split_key, b.shift_seed)
        assert not np.array_equal(a.indices, c.indices)
        assert a.split_key != c.split_key
    assert (
        len({site.split_key for site in first.sites})
        == len({site.shift_seed for site in first.sites})
        == len(SITES)
    )


def test_site_files_hold_ledger_policy_and_settings(tmp_path):
    scenario = load_scenario(
        "digits",
        [
            "privacy.epsilon=3",
            "simulation.insecure_seed=7",
            "resources.threads_per_site=2",
            "training.rounds=6",
            "evaluation.release=noised",
            "evaluation.noise_multiplier=2",
        ],
    )
    plan = plan_sites(scenario, None)
    file = read_site_file(prepare_simulation(scenario, plan, tmp_path / "run")[0])
    assert file.ledger.path.resolve() == (tmp_path / "run" / "ledgers" / "north.sqlite").resolve()
    assert (file.ledger.cohort, file.ledger.epsilon, file.ledger.delta) == (
        "simulation of digits",
        3.0,
        1e-3,
    )
    assert (file.ledger.durability, file.insecure_seed, file.threads) == ("normal", 7, 2)
    policy = file.policy
    assert (policy.max_run_epsilon, policy.allow_non_private, policy.max_steps) == (3.0, False, 120)
    assert (policy.evaluation_release, policy.min_evaluation_noise_multiplier) == ("noised", 2.0)
    assert file.cache_folder.resolve() == (tmp_path / "run" / "cache").resolve()
    shared = prepare_simulation(
        scenario, plan, tmp_path / "other", cache_folder=tmp_path / "shared"
    )[0]
    assert read_site_file(shared).cache_folder == (tmp_path / "shared").resolve()


def test_ledgers_are_made_with_the_sites_and_stay_unless_their_making_was_cut_off(tmp_path, deal):
    dealt, heads = deal(SITES), []
    for cut_off in (False, False, True):
        site_file = dealt.files(tmp_path)[0]
        if cut_off:
            site_file.ledger.witness.unlink()
            dealt.files(tmp_path)
        with Ledger.open(ledger_place(site_file.ledger), cohort_of(site_file)) as ledger:
            heads.append(ledger.head())
    assert heads[0] == heads[1] != heads[2]


def test_patients_stay_whole_however_many_records_are_used(tmp_path, deal):
    generator = np.random.default_rng(0)
    table = pandas.DataFrame(
        {"patient": generator.integers(0, 150, 900), "x": generator.normal(size=900)}
    )
    table["y"] = table["patient"] % 2
    table.to_csv(tmp_path / "t.csv", index=False)
    source = Table(
        path=tmp_path / "t.csv", label="y", classes=2, features=("x",), unit_column="patient"
    )
    sites = {"a": TRAIN, "b": TRAIN, "held": SiteSpec(role="held_out", records=100)}
    largest = table["patient"].value_counts().max()

    full, few = (deal(sites, IID, DataSpec(source=source, records=most)) for most in (None, 400))
    patients = [set(table["patient"][site.indices]) for site in full.plan.sites]
    assert sum(map(len, patients)) == table["patient"].nunique()
    assert not patients[0] & patients[1]
    # Whole patients are set aside until the records suffice.
    assert 100 <= len(full.plan.sites[2].indices) < 100 + largest
    site = full.load(tmp_path / "run")[0]
    assert site.train.unit_count + site.test.unit_count == len(patients[0])

    used = np.concatenate([site.indices for site in few.plan.sites])
    assert 400 <= len(used) == len(np.unique(used)) < 400 + largest
    patients = set(table["patient"][used])
    assert table["patient"].isin(patients).sum() == len(used)
    # What is set aside does not depend on how much is left.
    assert np.array_equal(full.plan.sites[2].indices, few.plan.sites[2].indices)
    other = deal(sites, IID, DataSpec(source=source, records=400), seed=2).plan
    assert set(table["patient"][np.concatenate([site.indices for site in other.sites])]) != patients


def test_fewer_records_of_natural_sites(data_folder, deal):
    def heart(records):
        return deal(HOSPITALS, NATURAL, DataSpec(source="heart", records=records), data_folder).plan

    sizes = np.array([len(site.indices) for site in heart(370).sites])
    assert sizes.sum() == 370
    assert np.abs(sizes / 370 - np.array([303, 130, 261, 46]) / 740).max() < 4 * 0.5 / np.sqrt(740)
    refused("data.records leaves no record to this natural site: raise it", heart, 1)


def test_natural_sites_are_the_data_sets_own(data_folder, tmp_path, deal, monkeypatch):
    # The data folder may come from the environment.
    monkeypatch.setenv("FL_DPBAYES_DATA", str(data_folder))
    dealt = deal(HOSPITALS, NATURAL, HEART)
    assert dealt.plan.source.folder == data_folder.resolve()
    assert [len(site.indices) for site in dealt.plan.sites] == [303, 130, 261, 46]
    assert dealt.plan.source.unit == "patient"
    held_out = dealt.load(tmp_path)[3]
    assert held_out.test.unit_count == 46
    assert held_out.test.labels.mean() == pytest.approx(45 / 46)


def test_official_parts_stay_apart(data_folder, tmp_path, deal):
    sites = {
        "a": TRAIN,
        "b": TRAIN,
        "validation": SiteSpec(role="held_out", part="validation"),
        "test": SiteSpec(role="shifted", part="test", records=100),
    }
    dealt = deal(sites, IID, DataSpec(source="pneumonia"), data_folder)
    assert [len(site.indices) for site in dealt.plan.sites] == [2354, 2354, 524, 100]
    official = load_unscaled(BuiltIn(kind="pneumonia", folder=data_folder), "test").scaled()
    assert np.array_equal(
        dealt.load(tmp_path)[3].test.features, official.features[dealt.plan.sites[3].indices]
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            (({"a": TRAIN, "b": SiteSpec(role="held_out", **keys)}, IID), said)
            for keys, said in (
                ({}, "sites.b.records is missing"),
                ({"records": 1798}, "1797 records of the part"),
                ({"records": 1797}, "there are 0"),
                ({"part": "test"}, "no part 'test'"),
            )
        ),
        (
            ({f"s{i}": TRAIN for i in range(50)}, divided("dirichlet", alpha=1.0, min_records=40)),
            "partition.min_records",
        ),
        (({"a": TRAIN}, NATURAL), "does not say which site"),
        (
            (
                {f"s{i}": TRAIN for i in range(600)},
                IID,
                DataSpec(source="digits", test_fraction=0.9),
            ),
            r"none of its .* units is left to train on.*data.test_fraction",
        ),
        (
            (SITES, IID, DataSpec(source="digits", records=1798)),
            r"data.records is 1798, but the part 'train' has 1797: choose at most",
        ),
        (
            ({"cleveland": TRAIN, "zurich": TRAIN}, NATURAL, HEART),
            "sites.zurich.*choose one of cleveland, hungarian, switzerland, va",
        ),
        (
            ({"cleveland": TRAIN, "va": SiteSpec(role="held_out", records=9)}, NATURAL, HEART),
            "sites.va.records.*remove the key",
        ),
    ],
)
def test_an_impossible_plan_names_the_key_and_the_remedy(deal, data_folder, arguments, message):
    refused(message, deal, *arguments, data_dir=data_folder)


# Sites that hold the records of another one.


def copy(kind, severity, of="held"):
    return SiteSpec(role="shifted", records_of=of, shift=Shift(kind=kind, severity=severity))


COPIES = {
    "blur-1": copy("blur", 1),
    "a": TRAIN,
    "held": HELD,
    "noise-2": copy("detector_noise", 2),
    "noise-4": copy("detector_noise", 4),
    "rare-5": copy("prevalence", 5),
    "b": TRAIN,
}


def test_copies_hold_the_named_sites_records_and_change_no_other_site(deal):
    sites = {site.name: site for site in deal(COPIES, IID).plan.sites}
    for name, spec in COPIES.items():
        if spec.records_of is not None:
            assert np.array_equal(sites[name].indices, sites["held"].indices)
            assert sites[name].shift_seed == sites["held"].shift_seed
    own = np.concatenate([sites[name].indices for name in ("a", "b", "held")])
    assert np.array_equal(np.sort(own), np.arange(1797))
    for site in deal({name: COPIES[name] for name in ("a", "held", "b")}, IID).plan.sites:
        assert np.array_equal(site.indices, sites[site.name].indices)
        assert (site.shift_seed, site.split_key) == (
            sites[site.name].shift_seed,
            sites[site.name].split_key,
        )


def test_copies_use_the_official_part_or_natural_site_of_the_named_one(data_folder, deal):
    sites = {"a": TRAIN, "held": SiteSpec(role="held_out", part="test"), "dark": copy("gamma", 3)}
    dark = deal(sites, IID, DataSpec(source="pneumonia"), data_folder).plan.sites[2]
    assert (dark.spec.part, len(dark.indices)) == ("test", 624)
    sites = {
        "cleveland": TRAIN,
        "va": SiteSpec(role="held_out"),
        "screened": copy("prevalence", 4, of="va"),
    }
    _, va, screened = deal(sites, NATURAL, HEART, data_folder).plan.sites
    assert np.array_equal(va.indices, screened.indices)
    assert va.test_units == 130 > screened.test_units


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            copy("blur", 1, of="zurich"),
            "sites.x.records_of is 'zurich', but there is no such site: name one of held",
        ),
        (copy("blur", 1, of="a"), "is 'a', but that is a training site.*: name one of held"),
        (copy("blur", 1, of="x"), "is 'x', but that site has records of another one itself"),
        (
            copy("blur", 1, of="held-2"),
            r"is 'held-2', but that site has records of another one itself \('held'\)",
        ),
    ],
)
def test_a_name_that_cannot_be_copied_is_refused(other, message):
    with pytest.raises(ValueError, match=message):
        check_shared_records({"a": TRAIN, "held": HELD, "held-2": copy("blur", 2), "x": other})


def test_keys_of_a_site_must_fit_each_other_and_its_role():
    shared = (
        {"role": "train"},
        {"role": "held_out", "records": 5},
        {"role": "shifted", "part": "test"},
    )
    for keys in (
        *(keys | {"records_of": "held"} for keys in shared),
        {"role": "train", "records": 10},
    ):
        with pytest.raises(ValidationError, match=r"records_of|held_out and shifted"):
            SiteSpec(**keys)


def test_roles_that_must_not_be_pooled():
    held = {"a": TRAIN, "held": HELD}
    assert roles_sharing_records(held | {"x": copy("blur", 1)}) == frozenset()
    assert roles_sharing_records(held | {"x": copy("blur", 1), "y": copy("blur", 2)}) == {"shifted"}
    again = SiteSpec(role="held_out", records_of="held")
    assert roles_sharing_records(held | {"again": again, "x": copy("blur", 1)}) == {"held_out"}


def test_a_scenario_that_is_written_and_read_again_still_shares(tmp_path):
    dark = [
        "sites.dark.role=shifted",
        "sites.dark.shift.kind=gamma",
        "sites.dark.records_of=held-out",
    ]
    scenario = load_scenario("digits", dark)
    prepare_simulation(scenario, plan_sites(scenario, None), tmp_path)
    again = load_scenario(str(tmp_path / "scenario.toml"))
    assert again.sites == scenario.sites
    units = RunStore.open(tmp_path, to_read=True).latest("partition")["units"]
    assert units["dark"] == units["held-out"]
    noised = ["evaluation.release=noised", "evaluation.noise_multiplier=2"]
    refused(
        "two ledgers.*set evaluation.release to 'public'",
        load_scenario,
        str(tmp_path / "scenario.toml"),
        noised,
    )


# Files that a scenario names are looked at before a run makes a folder.

PUBLIC = "aggregation.public={kind='file', path='PATH', statement='made up for a test'}"
BODY = [
    "model={kind='mlp', hidden=[5], frozen_body={weights='DIGEST'}}",
    "aggregation={rule='mixture'}",
]
SHORT = ["training={rounds=1, steps_per_round=2, thinning=1}"]


def check(assignments: list[str], data_dir: Path | None = None) -> None:
    plan_sites(load_scenario("digits", assignments), data_dir)


def weights(folder: Path) -> str:
    (folder / "backbones").mkdir(parents=True)
    path = folder / "backbones" / "body.safetensors"
    safetensors.torch.save_file({"1.weight": torch.ones(5, 64), "1.bias": torch.zeros(5)}, path)
    return sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("made", [True, False])
def test_missing_public_file_or_label_is_said_before_a_folder_is_made(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "public.npz"
    said = r"aggregation\.public\.path .* does not exist"
    if made:
        np.savez(path, features=np.zeros((3, 64), np.float32))
        said = "add an array 'labels', or set aggregation.beta to a number"
    public = PUBLIC.replace("PATH", str(path))
    scenario = load_scenario(
        "digits", ["aggregation.rule=predbayes", "aggregation.beta=fitted", public]
    )
    refused(said, simulate, scenario, "inline", None, None, Console())
    assert not (tmp_path / "runs").exists()
    if made:
        check(["aggregation.rule=predbayes", public])


def test_frozen_weights_are_found_by_sites_or_named_with_their_key(tmp_path, monkeypatch):
    monkeypatch.delenv("FL_DPBAYES_DATA", raising=False)
    digest = weights(tmp_path)
    body = [text.replace("DIGEST", digest) for text in BODY]
    check(body, tmp_path)
    refused("give --data-dir or set FL_DPBAYES_DATA", check, body)
    other = [text.replace("DIGEST", "0" * 64) for text in BODY]
    refused(
        r"put the file there, .* or correct model\.frozen_body\.weights", check, other, tmp_path
    )
    refused("does not hold this body", check, [body[0].replace("[5]", "[6]"), body[1]], tmp_path)
    # The server needs them too where it compares predictions.
    distilling = [body[0], "aggregation={rule='distillation', public={kind='synthetic', count=5}}"]
    refused("set FL_DPBAYES_DATA", check, distilling, tmp_path)
    monkeypatch.setenv("FL_DPBAYES_DATA", str(tmp_path))
    check(distilling)


@pytest.mark.slow
def test_prediction_finds_frozen_weights_in_the_given_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("FL_DPBAYES_DATA", raising=False)
    data_dir, records, out = tmp_path / "data", tmp_path / "new.npz", tmp_path / "out.csv"
    scenario = load_scenario(
        "digits", [BODY[0].replace("DIGEST", weights(data_dir)), BODY[1], *SHORT]
    )
    run = simulate(scenario, "inline", tmp_path / "run", data_dir, Console())
    np.savez(records, features=np.zeros((2, 1, 8, 8), np.float32))
    refused(
        r"model\.frozen_body\.weights.*--data-dir", predict_records, run, records, out, Console()
    )
    predict_records(run, records, out, Console(), data_dir=data_dir)
    assert len(out.read_text().splitlines()) == 3
    out = tmp_path / "gone" / "x.csv"
    refused(
        "create the folder .*gone first",
        predict_records,
        run,
        records,
        out,
        Console(),
        data_dir=data_dir,
    )
