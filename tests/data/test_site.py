from pathlib import Path

import numpy as np
import pandas
import pytest

from fl_dpbayes.config.data import Shift
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.site_file import Policy, Selection, SiteFile, Split, read_site_file, write_site_file
from fl_dpbayes.config.sources import BuiltIn, Table
from fl_dpbayes.data.records import load_source
from fl_dpbayes.data.site import load_site

KEY = "00112233445566778899aabbccddeeff"


def digits_site(**changes) -> SiteFile:
    keys = {
        "name": "a", "role": "train", "source": BuiltIn(kind="digits"), "units": 1440,
        "split": Split(test_fraction=0.2, key=KEY), "policy": Policy(max_run_epsilon=1.0),
    }  # fmt: skip
    return SiteFile(**(keys | changes))


def with_indices(tmp_path, indices, **changes) -> SiteFile:
    np.save(tmp_path / "i.npy", np.asarray(indices))
    return digits_site(selection=Selection(indices=tmp_path / "i.npy"), **changes)


def test_a_training_site_is_split_by_unit():
    site = load_site(digits_site())
    assert site.train is not None
    assert site.train.unit_count + site.test.unit_count == 1797
    assert abs(site.test.unit_count - 359.4) < 4 * np.sqrt(1797 * 0.16)
    assert site.train.features.dtype == np.float32
    assert site.train.labels.dtype == site.train.unit_index.dtype == np.int64
    assert np.array_equal(np.sort(site.train.unit_index), np.arange(site.train.unit_count))
    assert (site.units, site.unit, site.shift, site.role) == (1440, "record", "", "train")


def test_the_split_and_the_order_are_repeatable():
    first, again = load_site(digits_site()).train, load_site(digits_site()).train
    assert np.array_equal(first.features, again.features)
    other = load_site(digits_site(split=Split(test_fraction=0.2, key=KEY[::-1]))).train
    assert len(other.labels) != len(first.labels) or not np.array_equal(other.labels, first.labels)


@pytest.mark.parametrize("role", ["held_out", "shifted"])
def test_an_evaluation_site_keeps_everything_for_testing(role, tmp_path):
    site = load_site(with_indices(tmp_path, range(50), role=role, units=50))
    assert site.train is None
    assert site.test.unit_count == 50
    assert np.array_equal(site.test.features, load_source(BuiltIn(kind="digits"), "train").features[:50])


def test_a_patient_is_never_in_both_parts_and_a_new_one_moves_no_other(tmp_path):
    rows = pandas.DataFrame({"patient": np.repeat([f"p{i}" for i in range(200)], 3), "x": np.arange(600.0)})
    rows["y"] = np.arange(600) % 2
    table = Table(path=tmp_path / "t.csv", label="y", classes=2, features=("x",), unit_column="patient")

    def split(frame):
        frame.to_csv(tmp_path / "t.csv", index=False)
        return load_site(digits_site(source=table, units=160))

    site = split(rows)
    assert site.train is not None
    assert site.unit == "patient"
    assert site.train.unit_count + site.test.unit_count == 200
    assert (np.bincount(site.train.unit_index) == 3).all()
    # Records of a patient are consecutive and share an index.
    patients = (site.train.features[:, 0] // 3).astype(int)
    assert len(set(zip(patients.tolist(), site.train.unit_index.tolist(), strict=True))) == site.train.unit_count
    new = pandas.DataFrame({"patient": ["a new one"], "x": [1000.0], "y": [1]})
    grown = split(pandas.concat([new, rows]))
    assert set(site.train.features[:, 0]) == set(grown.train.features[:, 0]) - {1000.0}
    assert set(site.test.features[:, 0]) == set(grown.test.features[:, 0]) - {1000.0}


def test_a_shift_changes_the_site_and_is_named(tmp_path):
    changes = {"role": "shifted", "units": 50, "shift_seed": 3}
    plain = load_site(with_indices(tmp_path, range(50), **changes))
    blurred = load_site(with_indices(tmp_path, range(50), shift=Shift(kind="blur", severity=2), **changes))
    assert blurred.shift == "blur (severity 2)"
    assert np.array_equal(plain.test.labels, blurred.test.labels)
    assert not np.array_equal(plain.test.features, blurred.test.features)


def test_a_natural_site_is_selected_by_name(data_folder):
    source = BuiltIn(kind="heart", folder=data_folder)
    selection = Selection(natural_site="switzerland")
    site = load_site(digits_site(source=source, selection=selection, role="held_out", units=46))
    assert site.test.unit_count == 46
    assert site.unit == "patient"
    with pytest.raises(UserError, match="'zurich': choose one of cleveland, hungarian, switzerland, va"):
        load_site(digits_site(source=source, selection=Selection(natural_site="zurich"), units=46))
    with pytest.raises(UserError, match="does not say which site"):
        load_site(digits_site(selection=Selection(natural_site="a")))


@pytest.mark.parametrize(("indices", "message"), [
    ([0, 1797], r"holds 0 to 1797, allowed are 0 to 1796"),
    ([-1, 3], r"holds -1 to 3"),
    ([4, 4], "holds a record twice"),
    ([0.5, 1.5], "one row of whole numbers"),
    ([[1], [2]], "one row of whole numbers"),
    (np.array([], dtype=int), "the site has no records"),
])  # fmt: skip
def test_indices_are_checked(tmp_path, indices, message):
    with pytest.raises(UserError, match=message):
        load_site(with_indices(tmp_path, indices))


def test_a_pickle_is_not_opened(tmp_path):
    np.save(tmp_path / "i.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="is not a NumPy array file"):
        load_site(digits_site(selection=Selection(indices=tmp_path / "i.npy")))
    with pytest.raises(UserError, match="does not exist"):
        load_site(digits_site(selection=Selection(indices=tmp_path / "none.npy")))


@pytest.mark.parametrize("declared", [0, 1000, 2000])
def test_a_wrong_declaration_is_refused_with_a_round_number(declared):
    with pytest.raises(UserError, match=rf"declared as {declared}.*for example units = 1400"):
        load_site(digits_site(units=declared))


def test_a_declaration_need_not_be_exact_but_something_must_be_left_to_train_on():
    for declared in (1200, 1400, 1700):
        assert load_site(digits_site(units=declared)).units == declared
    with pytest.raises(UserError, match=r"lower split\.test_fraction"):
        load_site(digits_site(split=Split(test_fraction=1.0, key=KEY), units=0))


def test_a_site_file_survives_writing_and_reading(tmp_path):
    written = with_indices(tmp_path, range(40), units=32, shift=Shift(kind="gamma"))
    paths = {"selection": Selection(indices="i.npy"), "cache_folder": Path("cache"), "trace_folder": Path("../traces")}
    written = written.model_copy(update=paths)
    write_site_file(written, tmp_path / "sites" / "a.toml")
    read = read_site_file(tmp_path / "sites" / "a.toml")
    assert read.selection.indices == tmp_path / "sites" / "i.npy"
    assert read.trace_folder.resolve() == tmp_path / "traces"
    assert read.model_copy(update=paths) == written


def test_a_share_for_recalibration_is_a_third_part_and_its_size_follows_from_what_is_declared():
    plain = load_site(digits_site())
    assert plain.recalibration is None
    assert plain.recalibration_units == 0
    site = load_site(digits_site(units=1260, split=Split(test_fraction=0.2, recalibration_fraction=0.1, key=KEY)))
    assert site.train is not None
    assert site.recalibration is not None
    assert np.array_equal(site.test.features, plain.test.features)
    assert site.train.unit_count + site.recalibration.unit_count == plain.train.unit_count
    assert abs(site.recalibration.unit_count - 179.7) < 4 * np.sqrt(1797 * 0.09)
    assert site.recalibration_units == 180
    with pytest.raises(ValueError, match="exceed 1 together"):
        Split(test_fraction=0.5, recalibration_fraction=0.6, key=KEY)
