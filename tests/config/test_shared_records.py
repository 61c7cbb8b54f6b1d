import json

import numpy as np
import pytest
from pydantic import ValidationError

from fl_dpbayes.config.data import DataSpec, IIDPartition, NaturalPartition, Shift, SiteSpec
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.shared_records import check_shared_records, roles_sharing_records
from fl_dpbayes.config.site_file import Policy, read_site_file
from fl_dpbayes.data.simulation import plan_sites, prepare_simulation
from fl_dpbayes.data.site import load_site
from fl_dpbayes.data.virtual_site_files import write_virtual_sites
from fl_dpbayes.data.virtual_sites import plan_virtual_sites

TRAIN = SiteSpec(role="train")
HELD = SiteSpec(role="held_out", records=150)


def copy(kind, severity, of="held"):
    return SiteSpec(role="shifted", records_of=of, shift=Shift(kind=kind, severity=severity))


SITES = {
    "blur-1": copy("blur", 1),
    "a": TRAIN,
    "held": HELD,
    "blur-5": copy("blur", 5),
    "noise-2": copy("detector_noise", 2),
    "noise-4": copy("detector_noise", 4),
    "rare-5": copy("prevalence", 5),
    "flip-3": copy("label_flip", 3),
    "flip-5": copy("label_flip", 5),
    "b": TRAIN,
}


@pytest.fixture(scope="module")
def planned():
    return plan_virtual_sites(DataSpec(source="digits"), IIDPartition(), SITES, 0, None)


@pytest.fixture(scope="module")
def loaded(planned, tmp_path_factory):
    paths = write_virtual_sites(
        planned, tmp_path_factory.mktemp("run") / "sites", cohort="c", epsilon=1.0, delta=1e-4,
        adjacency="add_or_remove_one", policy=Policy(max_run_epsilon=1.0),
    )  # fmt: skip
    return {name: load_site(read_site_file(path)).test for name, path in zip(SITES, paths, strict=True)}


def test_copies_hold_the_named_sites_records_and_training_sites_the_others(planned):
    sites = {site.name: site for site in planned.sites}
    for name, spec in SITES.items():
        if spec.records_of is not None:
            assert np.array_equal(sites[name].indices, sites["held"].indices)
            assert sites[name].shift_seed == sites["held"].shift_seed
    own = np.concatenate([sites[name].indices for name in ("a", "b", "held")])
    assert np.array_equal(np.sort(own), np.arange(1797))


def test_copies_do_not_change_the_other_sites(planned):
    alone = plan_virtual_sites(DataSpec(source="digits"), IIDPartition(),
                               {name: SITES[name] for name in ("a", "held", "b")}, 0, None)  # fmt: skip
    sites = {site.name: site for site in planned.sites}
    for site in alone.sites:
        assert np.array_equal(site.indices, sites[site.name].indices)
        assert (site.shift_seed, site.split_key) == (sites[site.name].shift_seed, sites[site.name].split_key)


def test_severities_at_copies_are_paired(loaded):
    clean = loaded["held"].features
    small, large = loaded["noise-2"].features, loaded["noise-4"].features
    inside = (small > 0) & (small < 1) & (large > 0) & (large < 1)
    first, second = (small - clean)[inside], (large - clean)[inside]
    # The same noise field, scaled.
    assert np.corrcoef(first, second)[0, 1] > 0.99
    assert first.std() < second.std()
    flipped = {name: loaded[name].labels != loaded["held"].labels for name in ("flip-3", "flip-5")}
    assert 0 < flipped["flip-3"].sum() < flipped["flip-5"].sum()
    assert not (flipped["flip-3"] & ~flipped["flip-5"]).any()
    assert len(loaded["rare-5"].labels) < len(loaded["held"].labels)


def test_a_copy_uses_the_official_part_of_the_named_site(data_folder):
    sites = {"a": TRAIN, "held": SiteSpec(role="held_out", part="test"), "dark": copy("gamma", 3)}
    planned = plan_virtual_sites(DataSpec(source="pneumonia"), IIDPartition(), sites, 0, data_folder)
    assert planned.sites[2].spec.part == "test"
    assert len(planned.sites[2].indices) == 624


def test_a_natural_site_may_be_copied(data_folder):
    sites = {"cleveland": TRAIN, "va": SiteSpec(role="held_out"), "screened": copy("prevalence", 4, of="va")}
    planned = plan_virtual_sites(DataSpec(source="heart"), NaturalPartition(), sites, 0, data_folder)
    assert np.array_equal(planned.sites[1].indices, planned.sites[2].indices)
    assert planned.sites[1].test_units == 130 > planned.sites[2].test_units


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (copy("blur", 1, of="zurich"), "sites.x.records_of is 'zurich', but there is no such site: name one of held"),
        (copy("blur", 1, of="a"), "is 'a', but that is a training site.*: name one of held"),
        (copy("blur", 1, of="x"), "is 'x', but that site has records of another one itself"),
        (copy("blur", 1, of="held-2"), r"is 'held-2', but that site has records of another one itself \('held'\)"),
    ],
)
def test_a_name_that_cannot_be_copied_is_refused(other, message):
    with pytest.raises(ValueError, match=message):
        check_shared_records({"a": TRAIN, "held": HELD, "held-2": copy("blur", 2), "x": other})


@pytest.mark.parametrize(
    "keys",
    [{"role": "train"}, {"role": "held_out", "records": 5}, {"role": "shifted", "part": "test"}],
)
def test_other_keys_must_fit(keys):
    with pytest.raises(ValidationError, match="records_of"):
        SiteSpec(records_of="held", **keys)


def test_roles_that_must_not_be_pooled():
    held = {"a": TRAIN, "held": HELD}
    assert roles_sharing_records(held | {"x": copy("blur", 1)}) == frozenset()
    assert roles_sharing_records(held | {"x": copy("blur", 1), "y": copy("blur", 2)}) == {"shifted"}
    again = SiteSpec(role="held_out", records_of="held")
    assert roles_sharing_records(held | {"again": again, "x": copy("blur", 1)}) == {"held_out"}


def test_a_scenario_that_is_written_and_read_again_still_shares(tmp_path):
    dark = ["sites.dark.role=shifted", "sites.dark.shift.kind=gamma", "sites.dark.records_of=held-out"]
    scenario = load_scenario("quickstart", dark)
    prepare_simulation(scenario, plan_sites(scenario, None), tmp_path)
    again = load_scenario(str(tmp_path / "scenario.toml"))
    assert again.sites == scenario.sites
    units = json.loads((tmp_path / "partition.json").read_text())["units"]
    assert units["dark"] == units["held-out"]
    with pytest.raises(UserError, match=r"two ledgers.*set evaluation.release to 'public'"):
        load_scenario(str(tmp_path / "scenario.toml"), ["evaluation.release=noised", "evaluation.noise_multiplier=2"])
