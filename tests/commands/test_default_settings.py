"""The settings by default: found by the committed search, one place, and no warning of themselves."""

import pandas
import pytest

import fl_dpbayes as fl
from fl_dpbayes.api.from_python import _scenario_content
from fl_dpbayes.commands.default_settings import DEFAULTS
from fl_dpbayes.config.scenario import Scenario, load_scenario
from fl_dpbayes.config.validation_text import read_record
from fl_dpbayes.predict.finished_run import read_run
from fl_dpbayes.report.run_files import read_summary
from studies.defaults.choice import best_try
from studies.defaults.page import read_tries
from studies.defaults.settings import all_settings
from studies.defaults.splits import write_proposal
from studies.defaults.tables import LABEL, SITE, icu
from studies.pages import DEFAULTS as RESULTS

FEATURES = 6
SECTIONS = ("sampler", "training", "privacy")


def made_up() -> pandas.DataFrame:
    return icu(sizes=(60, 90), hospitals=3, slopes=4, features=FEATURES, intercept=-0.5)


def sections_of(scenario: Scenario) -> dict[str, object]:
    written = scenario.model_dump(mode="json", exclude_none=True)
    return {name: written[name] for name in SECTIONS}


def test_they_are_the_best_of_the_search(tmp_path) -> None:
    proposal = write_proposal(made_up(), tmp_path)
    best = all_settings()[best_try(read_tries(RESULTS))]
    chosen = load_scenario(str(proposal), best.overrides(FEATURES))
    assert sections_of(chosen) == sections_of(load_scenario(str(proposal)))


def test_init_and_python_propose_the_same(tmp_path) -> None:
    table = made_up()
    proposal = load_scenario(str(write_proposal(table, tmp_path)))
    content = _scenario_content(fl.sites_from_frame(table, site=SITE, label=LABEL), {})
    content["data"]["source"]["path"] = "table.parquet"
    assert sections_of(read_record(Scenario, content, "simulate")) == sections_of(proposal)


@pytest.mark.parametrize("rounds", [1, 6, 50, 60, 120, 1000])
def test_so_many_rounds_keep_fifty_samples_where_they_can(rounds) -> None:
    kept = DEFAULTS.kept(rounds, 2)
    samples = (2 * rounds - kept["burn_in"]) // kept["thinning"]
    assert samples >= min(50, rounds - rounds // 6)
    assert kept["thinning"] % 2 == 0


@pytest.mark.slow
def test_a_run_by_default_warns_of_its_constants_alone(tmp_path, command) -> None:
    made_up().to_csv(tmp_path / "t.csv", index=False)
    out = tmp_path / "mine.toml"
    asked = ["--from", tmp_path / "t.csv", "--label", LABEL, "--site", SITE, "--out", out]
    assert command("init", *asked)[0] == 0
    run = tmp_path / "run"
    status, said, error = command("simulate", out, "--out", run, "--engine", "inline")
    assert status == 0, error
    (warning,) = read_summary(run).warnings
    assert warning.startswith("Constants of data.source were taken from the records")
    assert said.count("warning:") == 1
    assert len(read_run(run).stored.samples.weights) >= 50
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "samples are averaged as in DP-SGD" in " ".join(page.split())
