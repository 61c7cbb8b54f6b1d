"""A simulation from Python, as an analyst writes it: a frame of hospitals, tables, figures, predictions, mistakes."""

import doctest
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import matplotlib
import numpy as np
import pandas
import pytest
import torch
from rich.console import Console
from sklearn.calibration import CalibrationDisplay
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fl_dpbayes as fl
from fl_dpbayes.api import frames
from fl_dpbayes.api.frames import SiteRecords
from fl_dpbayes.engine.progress import EventReader, follow

matplotlib.use("Agg")
GENERATOR = np.random.default_rng(0)
COLUMNS, CENTERS, SCALES = ["age", "pressure"], [60, 130], [10, 20]
PRIVACY = {"epsilon": 4, "delta": 1e-3}
DATA = (np.zeros((30, 2)), np.arange(30) % 2)


def patients(count: int = 400) -> pandas.DataFrame:
    signs = GENERATOR.normal(size=(count, 2))
    is_sick = GENERATOR.random(count) < 1 / (1 + np.exp(-4 * signs[:, 0]))
    return pandas.DataFrame(
        {
            "hospital": GENERATOR.choice(["St. Mary", "north", "south", "west"], count),
            "age": 60 + 10 * signs[:, 0],
            "pressure": 130 + 20 * signs[:, 1],
            "ward": GENERATOR.choice(["a", "b"], count),
            "sick": np.where(is_sick, "yes", "no"),
            "patient": np.arange(count) // 2,
            "note": [f"note {number}" for number in range(count)],
        },
        index=[f"row {number}" for number in range(count)],
    )


FRAME = patients()


class MyNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(records)))


def sites(frame: pandas.DataFrame = FRAME, **changes: object) -> SiteRecords:
    given = {
        "site": "hospital",
        "label": "sick",
        "event": "yes",
        "features": COLUMNS,
        "centers": CENTERS,
        "scales": SCALES,
    }
    return fl.sites_from_frame(frame, **given | changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fl.Run]:
    with pytest.MonkeyPatch.context() as patch:
        # Its figures take longer than the run.
        patch.setattr("server.federation.write_report", lambda folder: None)
        yield fl.simulate(
            sites(unit="patient"),
            {
                "training.steps_per_round": 20,
                "training.burn_in": 60,
                "training.thinning": 5,
                "data.allow_shared_units": True,
            },
            model=MyNet(),
            sampler=fl.DPSGLD(step_size=0.3),
            privacy=fl.Privacy(**PRIVACY),
            held_out=["St. Mary"],
            rounds=6,
            rule=fl.FALD(),
            quiet=True,
            out=tmp_path_factory.mktemp("frame") / "run",
        )


def test_import_is_lazy_and_every_name_is_there() -> None:
    code = (
        "import sys; import fl_dpbayes; sys.exit(bool({'torch', 'flwr', 'pandas'} & "
        "set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert all(getattr(fl, name).__doc__ for name in fl.__all__ if name != "__version__")
    assert dir(fl) == sorted(fl.__all__)
    assert dir(fl.strategies) == ["FALD"]
    with pytest.raises(AttributeError) as error:
        fl.DPNesterov  # noqa: B018
    assert (error.value.name, error.value.obj) == ("DPNesterov", fl)
    assert (Path(fl.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize(
    ("key", "taken"), [("centers", "mean"), ("centers", "median"), ("scales", "std")]
)
def test_constants_that_are_a_statistic_of_the_records_are_not_public(key, taken) -> None:
    with pytest.warns(
        UserWarning, match=f"{key} of 'age', {key} of 'pressure': equal to a statistic"
    ):
        found = sites(**{key: getattr(FRAME[COLUMNS], taken)()})
    assert (found.source.constants, sites().source.constants) == ("from_records", "public")


@pytest.mark.slow
def test_the_run_is_what_was_asked_for(run) -> None:
    assert {(row.site, row.unit) for row in run.privacy} == {
        (site, "patient") for site in ("west", "north", "south")
    }
    assert (run.privacy.to_frame()["epsilon"] <= 4).all()
    assert set(run.calibration.to_frame().query("role == 'held_out'")["site"]) == {
        "St.-Mary",
        "pooled:held_out",
    }
    assert run.calibration[0].rms_debiased == run.calibration.to_frame()["rms_debiased"][0]
    with pytest.raises(fl.UserError, match=r"a column is .to_frame\(\)\['site'\]"):
        run.calibration["site"]
    assert "<table" in run.calibration._repr_html_()
    assert "St.-Mary" in repr(run.calibration)
    training, privacy = run.scenario.training, run.scenario.privacy
    assert (training.rounds, training.burn_in, training.thinning) == (6, 60, 5)
    assert (privacy.epsilon, privacy.coupling, privacy.temperature) == (4, "constant", None)
    assert run.scenario.sampler.step_size.initial == 0.3
    assert (run.folder / "records.parquet").is_file()


def test_it_is_a_classifier_as_scikit_learn_has_them(run) -> None:
    probabilities = run.predict_proba(FRAME)
    assert run.classes_.tolist() == ["no", "yes"]
    assert list(probabilities) == ["no", "yes", "total_uncertainty", "epistemic_uncertainty"]
    assert (probabilities.index == FRAME.index).all()
    assert probabilities[["no", "yes"]].sum(axis=1).to_numpy() == pytest.approx(1)
    assert (probabilities["epistemic_uncertainty"] <= probabilities["total_uncertainty"]).all()
    assert roc_auc_score(FRAME["sick"], probabilities[:, 1]) > 0.85
    assert log_loss(FRAME["sick"], probabilities[run.classes_]) < 0.6
    assert set(run.predict(FRAME)) == {"no", "yes"}
    assert run.score(FRAME, FRAME["sick"]) == (run.predict(FRAME) == FRAME["sick"]).mean() > 0.7
    with pytest.raises(fl.UserError, match="labels hold 1: the run's classes are no, yes"):
        run.score(FRAME, np.ones(len(FRAME), int))
    assert CalibrationDisplay.from_estimator(run, FRAME, FRAME["sick"]).y_prob == pytest.approx(
        probabilities["yes"]
    )
    # An array has the same columns in the same order and units.
    array = FRAME[COLUMNS].to_numpy()
    assert run.predict_proba(array)[:, 1] == pytest.approx(probabilities[:, 1])
    data_set = TensorDataset(torch.tensor(array), torch.zeros(len(array)))
    assert run.predict_proba(data_set)[:, 1] == pytest.approx(probabilities[:, 1])


@pytest.mark.slow
def test_figures_page_and_what_it_does_not_overwrite(run, tmp_path) -> None:
    axes = matplotlib.pyplot.subplots()[1]
    assert run.plot_reliability("St. Mary", ax=axes) is axes
    assert "St.-Mary" in axes.get_title()
    matplotlib.pyplot.close("all")
    assert "<iframe sandbox srcdoc=" in run._repr_html_()
    assert (
        run.report(run.report(tmp_path / "report.html")).read_text()
        == (run.folder / "report.html").read_text()
    )
    (tmp_path / "mine.html").write_text("<!DOCTYPE html>")
    with pytest.raises(fl.UserError, match="is no page of a run"):
        run.report(tmp_path / "mine.html")


def test_it_is_read_back_with_its_module_only_and_is_known_as_finished_without(
    run, command
) -> None:
    assert "is finished: nothing is left to do" in command("simulate", "--resume", run.folder)[1]
    assert (
        fl.load_run(run.folder, model=MyNet()).predict_proba(FRAME).equals(run.predict_proba(FRAME))
    )
    for module in (None, nn.Linear(2, 2)):
        with pytest.raises(fl.UserError, match=r"with a module object, .* fl.load_run\(.*, model="):
            fl.load_run(run.folder, model=module).predict_proba(FRAME)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:\\nArviZ is undergoing:FutureWarning")
def test_chains_go_to_arviz_by_site_or_averaged(run, tmp_path, monkeypatch) -> None:
    averaged = run.posterior.to_arviz().posterior
    assert averaged["chain"].to_numpy().tolist() == ["averaged chain"]
    assert averaged["first.weight"].shape == (1, len(run.posterior), 4, 2)
    MyNet().load_state_dict(run.posterior[0])
    assert repr(run.posterior) == "3 posterior samples of 22 parameters by rule 'fald'"
    assert len(run.posterior) == 3
    run.posterior.save(tmp_path / "copy.safetensors")
    copy, original = tmp_path / "copy.safetensors", run.folder / "posterior.safetensors"
    assert copy.read_bytes() == original.read_bytes()
    arrays = fl.sites_from_arrays(FRAME[COLUMNS] / 100, FRAME["sick"], FRAME["hospital"])
    steps = {"steps_per_round": 20, "burn_in": 20, "thinning": 2, "chains": 2}
    settings = {f"training.{name}": value for name, value in steps.items()}
    mixed = fl.simulate(
        arrays, settings, rule=fl.Mixture(), rounds=2, quiet=True, out=tmp_path / "run"
    )
    assert mixed.classes_.tolist() == ["no", "yes"]
    assert mixed.predict_proba(FRAME[COLUMNS] / 100)[:, 1].shape == (len(FRAME),)
    chains, names = mixed.posterior.to_arviz(), ("St.-Mary", "north", "south", "west")
    assert set(chains.posterior["chain"].to_numpy()) == {
        f"{site} {number}" for site in names for number in (1, 2)
    }
    weights = chains.posterior["1.weight"].to_numpy().reshape(-1, 2, 2)
    assert np.allclose(
        np.sort(weights, axis=0), np.sort(mixed.posterior.samples.arrays["1.weight"], axis=0)
    )
    (mixed.folder / "run.sqlite").write_bytes(b"damaged")
    with pytest.raises(fl.UserError, match="is not as it was written"):
        mixed.posterior.to_arviz()
    (other := ModuleType("server")).__file__ = str(tmp_path / "server.py")
    monkeypatch.setitem(sys.modules, "server", other)
    with pytest.raises(fl.UserError, match="in the way"):
        mixed.posterior.to_arviz()


def test_docstrings_show_what_happens() -> None:
    assert doctest.testmod(frames) == (0, 5)


def test_what_is_not_said_is_proposed_and_marked() -> None:
    keys = {"site": "hospital", "label": "sick"}
    found = fl.sites_from_frame(FRAME.assign(age=FRAME["age"].where(FRAME["age"] < 75)), **keys)
    assert (found.source.constants, found.source.categories) == (
        "from_records",
        {"ward": ("a", "b")},
    )
    assert "age" in found.source.missing
    assert "left out: note, 400 values of text" in repr(found)
    assert (
        fl.sites_from_frame(FRAME[["hospital", "sick", "age"]], **keys).source.constants
        == "from_records"
    )
    assert found.source.class_names[1] == FRAME["sick"].value_counts().index[1]
    assert f"event: {found.source.class_names[1]}, " in repr(found)
    ordered = FRAME.assign(sick=pandas.Categorical(FRAME["sick"], ["yes", "no"]))
    assert sites(ordered, event=None).source.class_names == ("yes", "no")
    assert sites(ordered).source.class_names == ("no", "yes")
    sick = FRAME["sick"] == "yes"
    assert sites(FRAME.assign(sick=sick), event=None).source.class_names == ()
    assert sites(FRAME.assign(sick=sick), event=False).source.class_names == ("1", "0")
    wards = ["east"] * 200 + ["west"] * 160 + [f"ward {number}" for number in range(40)]
    alone = FRAME.assign(ward=wards)[["hospital", "sick", "ward"]]
    grouped = fl.sites_from_frame(alone, **keys).source
    assert (grouped.categories, grouped.others) == ({"ward": ("east", "west")}, {"ward": "other"})
    with pytest.warns(UserWarning, match=r"1 feature should .*: 'age' \(about 60\)\."):
        sites(centers=None, scales=None, features=["age"])


MISTAKES = {
    "^patient: .* patients stand at several hospitals, .* Keep each patient's rows": lambda: (
        fl.simulate(sites(unit="patient"))
    ),
    "^both classes of 'sick' are .* event='no'  or  event='yes'": lambda: sites(
        FRAME.assign(sick=["no", "yes"] * 200), event=None
    ),
    "features has 'agee': the frame has no such column: did you mean 'age'": lambda: sites(
        features=["agee"]
    ),
    "centers names 'agee', no numeric feature: did you mean 'age'": lambda: sites(
        centers={"agee": 60}
    ),
    "the frame has no such column: did you mean 'sick'": lambda: sites(label="sik"),
    "1 of 400 rows have no value": lambda: sites(
        FRAME.assign(sick=FRAME["sick"].where(FRAME.index != "row 0"))
    ),
    "row 4, column 'age': missing, or no": lambda: sites(
        FRAME.assign(age=FRAME["age"].where(FRAME.index != "row 3"))
    ),
    "'note' has 400 values of text": lambda: sites(features=["note"], centers=None, scales=None),
    "which is the label, site or unit": lambda: sites(features=["sick"]),
    "centers has 1 values for 2 features": lambda: sites(centers=[1]),
    r"held_out names 'east': did you mean 'west'\? choose among the sites": lambda: fl.simulate(
        sites(), held_out=["east"]
    ),
    "engine 'flower' runs sites in other processes": lambda: fl.simulate(
        sites(), model=MyNet(), engine="flower"
    ),
    r"no 'epochs': write settings={\"training.steps_per_round\": ...}": lambda: fl.simulate(
        sites(), epochs=3
    ),
    r"^simulate takes no 'target_epsilon': write privacy=fl.Privacy\(epsilon=...\);": lambda: (
        fl.simulate(sites(), target_epsilon=3)
    ),
    r"^privacy is 4.0: write privacy=fl.Privacy\(epsilon=4.0, delta=...\)": lambda: fl.simulate(
        sites(), privacy=4.0
    ),
    "simulate has a DataFrame: give fl.sites_from_frame.frame, site=": lambda: fl.simulate(FRAME),
    "simulate has a TensorDataset: give fl.sites_from_datasets.* a data set for each site": lambda: (
        fl.simulate(TensorDataset(torch.ones(3)))
    ),
    "^model is <class .*: give a torch module that was built": lambda: fl.load_run(
        ".", model=MyNet
    ),
    "^feature 'age' has text among numbers: write decimals with a point": lambda: sites(
        FRAME.assign(age=FRAME["age"].astype(str).where(FRAME["patient"] % 4 > 0, "60,5"))
    ),
    "settings is a list: give a dictionary": lambda: fl.simulate(sites(), ["seed"]),
    "^Privacy: epsilon is -1: input should be greater than 0$": lambda: fl.Privacy(
        epsilon=-1, delta=1e-3
    ),
    "^Privacy takes no 'target_epsilon': write epsilon=...; ": lambda: fl.Privacy(
        target_epsilon=1, target_delta=1e-3
    ),
    "^Privacy takes no 'max_grad_norm': write clip_norm=...; ": lambda: fl.Privacy(
        epsilon=1, delta=1e-3, max_grad_norm=1
    ),
    "^Privacy: key 'delta' is missing: add it, below 1 / n": lambda: fl.Privacy(epsilon=1),
    "^DPSGLD has 0.3 without a name: write its keys by name, step_size": lambda: fl.DPSGLD(0.3),
    "^Privacy takes no 'deltas': did you mean 'delta'": lambda: fl.Privacy(
        epsilon=1, delta=1e-3, deltas=2
    ),
    "^private chain: rounds is 0": lambda: fl.private_chain(
        MyNet(), DATA, fl.Privacy(**PRIVACY), rounds=0
    ),
    "^setting 'name.x=1': 'name' is a value": lambda: fl.simulate("digits", {"name.x": 1}),
    "<class .*DPSGLD.*: write sampler=fl.DPSGLD": lambda: fl.simulate(sites(), sampler=fl.DPSGLD),
    "^sampler is .*: write sampler=fl.DPSGLD": lambda: fl.simulate(sites(), sampler=fl.FALD()),
    "or a torch module that was built": lambda: fl.simulate(sites(), model=MyNet),
    "needs 20: name it in held_out": lambda: fl.simulate(
        sites(FRAME.query("hospital != 'west' or patient < 20"))
    ),
    "features are a TensorDataset: give sites_from_datasets": lambda: fl.sites_from_arrays(
        TensorDataset(torch.ones(3)), [0, 1, 0], ["a", "b", "c"]
    ),
    "site 'a': the data set's records are no .features, label.: give": lambda: (
        fl.sites_from_datasets({"a": TensorDataset(torch.ones(3))})
    ),
    "records differ in shape: ": lambda: fl.sites_from_datasets(
        {"a": DATA, "b": (np.zeros((30, 3)), DATA[1])}
    ),
    "units name b: name the sites a": lambda: fl.sites_from_datasets(
        {"a": DATA}, units={"b": DATA[1]}
    ),
    "give one for each of the 3 records": lambda: fl.sites_from_arrays(
        np.ones((3, 2)), [0, 1], ["a", "b", "c"]
    ),
}


@pytest.mark.parametrize("said", MISTAKES)
def test_a_mistake_is_told_in_one_sentence_and_leaves_nothing(said, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fl.UserError, match=said) as error:
        MISTAKES[said]()
    assert error.value._render_traceback_() == [f"UserError: {error.value}"]
    assert not list(tmp_path.glob("runs/*"))


def test_data_sets_and_loaders_are_sites_as_arrays_are() -> None:
    features, labels = torch.rand(60, 1, 4, 4), torch.arange(60) % 3
    data_set = TensorDataset(features[:30], labels[:30])
    loader = DataLoader(TensorDataset(features[30:], labels[30:]), batch_size=7, shuffle=True)
    units = {"north": np.arange(30) // 2, "south": np.arange(30) + 30}
    with pytest.warns(UserWarning, match="a DataLoader's data set is read once"):
        found = fl.sites_from_datasets({"north": data_set, "south": loader}, units=units)
    arrays = fl.sites_from_arrays(
        features, labels, ["north"] * 30 + ["south"] * 30, units=np.concatenate([*units.values()])
    )
    assert (found.sizes, found.source) == (arrays.sizes, arrays.source)
    assert found.sizes == {"north": 15, "south": 30}
    assert all(np.array_equal(found.records[name], arrays.records[name]) for name in arrays.records)


def test_a_notebook_shows_progress_in_one_output(tmp_path, monkeypatch) -> None:
    shown = []
    handle = SimpleNamespace(update=shown.append)
    monkeypatch.setattr(
        "IPython.display.display", lambda page, display_id: shown.append(page) or handle
    )
    (tmp_path / "events").write_text('{"event": "roster", "sites": {"north": "train"}}\n')
    follow(EventReader(tmp_path / "events"), 3, Console(force_jupyter=True), lambda: False)
    assert len(shown) > 1
    assert all("starting" in page.data and "0%" in page.data for page in shown[1:])
    assert "north" not in shown[-1].data
