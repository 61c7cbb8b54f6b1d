"""The rules `distillation` and `predbayes` in whole runs in this process."""

from pathlib import Path

import numpy as np
import pytest

from fl_dpbayes.config.task import Task
from fl_dpbayes.data.records import Records
from fl_dpbayes.data.site import load_site
from fl_dpbayes.files.run_store import RunStore
from fl_dpbayes.models.build import build_model
from fl_dpbayes.posterior.predictive import predict
from fl_dpbayes.posterior.rules.predbayes import best_beta, between, product_and_mixture
from fl_dpbayes.posterior.sample_store import PosteriorBank
from fl_dpbayes.report.page import write_report
from tests.asking import refused
from tests.server.conftest import predictions

TASK = Task(input_shape=(1, 8, 8), classes=10)
# Sites that only evaluate take time; two of them give records that no site trains on.
SPARE = ["sites.noisy-scanner=", "sites.rotated=", "sites.spare={role='held_out', records=400}"]
KEPT = [*SPARE, "training={rounds=2, steps_per_round=20, burn_in=20, thinning=5}"]
STATEMENT = "digits that came with the library"


def held_back(run, site: str) -> Records:
    return load_site(run.site_file(site)).test


def public_section(path: Path) -> str:
    return f"public={{kind='file', path='{path}', statement='{STATEMENT}'}}"


def fitting_file(folder: Path) -> Path:
    """Write what fits, for a simulation is planned only then."""
    np.savez(folder / "public.npz", features=np.zeros((4, 64)), labels=np.zeros(4, np.int64))
    return folder / "public.npz"


def federation_with_public_file(federation, tmp_path: Path, rule: str):
    path = fitting_file(tmp_path)
    run = federation(f"aggregation={{{rule}, {public_section(path)}}}", *KEPT)
    part = held_back(run, "spare")
    np.savez(path, features=part.features, labels=part.labels)
    return run


def site_predictions(run, features) -> list[np.ndarray]:
    bank, module = (
        PosteriorBank(RunStore.open(run.folder, to_read=True)),
        build_model(run.scenario.model, TASK, 0),
    )
    samples = [bank.stored(site).in_memory() for site in ("north", "south", "east", "west")]
    return [predict(module, each.arrays, each.weights, features).probabilities for each in samples]


def divergence(teacher, student) -> float:
    return float((teacher * np.log(teacher / student)).sum(axis=1).mean())


@pytest.mark.slow
def test_student_of_public_records_predicts_like_the_mixture_of_sites(
    federation, tmp_path: Path
) -> None:
    run = federation_with_public_file(
        federation, tmp_path, "rule='distillation', largest_share=1"
    ).run()
    units = {site["name"]: site["n"] for site in run.summary()["sites"] if site["role"] == "train"}
    said = run.summary()["aggregation_inputs"]
    public, unseen = held_back(run, "spare").features, held_back(run, "held-out").features
    for features, bound in ((public, 0.03), (unseen, 0.06)):
        teacher = np.average(site_predictions(run, features), axis=0, weights=list(units.values()))
        assert divergence(teacher, predictions(run, features)) < bound
        if features is public:
            assert said["divergence"] == pytest.approx(
                divergence(teacher, predictions(run, features)), rel=1e-4
            )
    assert len(run.posterior()) == 1
    assert run.posterior().temperatures.tolist() == [0.0]
    assert {record["plan"]["prior_share"] for record in run.asked("train")} == {1.0}
    assert (said["kind"], said["file"], said["count"], said["labelled"]) == (
        "file",
        "public.npz",
        400,
        False,
    )
    page = write_report(run.folder).read_text()
    assert f"400 records of public.npz, labels not used, declared public: {STATEMENT}" in page


@pytest.mark.slow
def test_fitted_beta_and_student_are_those_of_the_sites_predictions(
    federation, tmp_path: Path
) -> None:
    run = federation_with_public_file(federation, tmp_path, "rule='predbayes', beta='fitted'").run()
    part, said = held_back(run, "spare"), run.summary()["aggregation_inputs"]
    single = site_predictions(run, part.features)
    assert said["beta"] == pytest.approx(
        best_beta(product_and_mixture(single), part.labels), abs=1e-4
    )
    assert 0 < said["beta"] < 1
    assert said["labelled"]
    assert (
        divergence(
            between(product_and_mixture(single), said["beta"]), predictions(run, part.features)
        )
        < 0.03
    )
    unseen = held_back(run, "held-out").features
    teacher = between(product_and_mixture(site_predictions(run, unseen)), said["beta"])
    assert divergence(teacher, predictions(run, unseen)) < 0.06


@pytest.mark.slow
def test_synthetic_inputs_need_no_record_and_are_warned_about(federation) -> None:
    run = federation(
        "aggregation={rule='predbayes', beta=0.5, public={kind='synthetic', "
        "pattern='strokes', count=300}}",
        *KEPT,
    ).run()
    summary = run.summary()
    said = summary["aggregation_inputs"]
    assert (said["kind"], said["pattern"], said["count"], said["statement"], said["beta"]) == (
        "synthetic",
        "strokes",
        300,
        "",
        0.5,
    )
    assert any("at made-up inputs only" in warning for warning in summary["warnings"])
    assert "300 made-up inputs (strokes), no record" in write_report(run.folder).read_text()


@pytest.mark.parametrize(
    ("arrays", "rule", "said"),
    [
        (None, "rule='distillation'", "does not exist"),
        (
            {"features": np.zeros((4, 63))},
            "rule='distillation'",
            "give at least one row of 64 numbers",
        ),
        ({"features": np.zeros((4, 64))}, "rule='predbayes', beta='fitted'", "no array 'labels'"),
        (
            {"features": np.zeros((4, 64), object)},
            "rule='distillation'",
            "npz archive of plain arrays",
        ),
    ],
    ids=["absent", "shape", "labels", "pickle"],
)
def test_public_file_that_does_not_fit_is_refused_before_any_budget_is_spent(
    federation, tmp_path: Path, arrays, rule: str, said: str
) -> None:
    path = fitting_file(tmp_path)
    section = f"aggregation={{{rule}, {public_section(path)}}}"
    run = federation(section)
    path.unlink() if arrays is None else np.savez(path, **arrays)
    refused(said, federation, section, name="planned")
    # A server whose sites hold their own data plans no simulation.
    refused(said, run.run)
    assert {message.metadata.message_type for message in run.grid.requests} == {"query"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("{kind='logistic', features={kind='scattering', scales=1, angles=4}}", (10, 80)),
        ("{kind='mlp', hidden=[8], frozen_body={seed=0}}", (10, 8)),
    ],
)
def test_student_has_the_features_or_the_frozen_body_of_the_model(
    federation, model: str, shape: tuple
) -> None:
    rule = "aggregation={rule='distillation', iterations=20, public={kind='synthetic', count=50}}"
    run = federation(rule, f"model={model}", *SPARE).run()
    assert run.summary()["aggregation_inputs"]["count"] == 50
    assert [array.shape[1:] for array in run.posterior().arrays.values() if array.ndim > 2] == [
        shape
    ]
