"""Wrong scenarios are refused in one line that names the key and the remedy."""

import re
from pathlib import Path

import pytest

from fl_dpbayes.config.scenario import Scenario, load_scenario, shipped_scenarios, write_scenario
from fl_dpbayes.config.validation_text import read_record
from fl_dpbayes.data.simulation import plan_sites, run_identifier
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.record import digest
from tests.asking import refused

DROPOUT = ["sampler.kind=dp-mc-dropout", "aggregation.rule=mixture"]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["privacy.epsilonn=2"], "unknown key 'privacy.epsilonn': did you mean 'epsilon'"),
        (["privacy.max_grad_norm=2"], "'privacy.max_grad_norm': did you mean 'clip_norm'"),
        (["sampler.kind=dp-sgdl"], "kind 'dp-sgdl': did you mean '(dp-sgld|dp-sgd)'"),
        (["foo=1"], "unknown key 'foo': allowed here"),
        (["seed.x=1"], "'seed' is a value, not a table"),
        (["privacy.epsilon=-1"], "privacy.epsilon is -1: .*greater than 0"),
        (["privacy"], "write it as key.sub_key=value"),
        (["privacy.epsilon=much"], "privacy.epsilon is 'much': .*number"),
        (["privacy.clipping.kind=[1]"], "kind"),
        (["privacy.kind=none"], "privacy: remove the key kind: .*'dp-sgld' says .* is private"),
        (["sampler.kind=sgld", "privacy={kind='none'}"], "remove the key kind.*is not private"),
        (["privacy.temperature="], "coupling 'floor' needs temperature"),
        (["sampler.step_size={kind="], "not valid TOML"),
        (["sites.north.role=trainer"], "sites.north.role is 'trainer': .*'held_out'"),
        (["model.kind=transformer"], "model: kind 'transformer': .*'logistic'"),
        (["training.burn_in=100000"], "burn_in 100000.*lower burn_in"),
        (["evaluation.release=noised"], "noise_multiplier must be given"),
        (["resources.min_sites=99"], "resources.min_sites is 99.*lower it"),
        (
            ["model.frozen_body={ seed = 0 }"],
            "model.frozen_body: model.kind 'logistic' has none: remove it",
        ),
        (
            ["model={ kind = 'mlp', frozen_body = { weights = 'abc' } }"],
            (
                r"model.frozen_body.weights: 'abc' is no SHA-256: give 64 lower-case hexadecimal "
                r"digits \(sha256sum FILE\)"
            ),
        ),
        (
            ["aggregation.rule=predbayes"],
            "'aggregation.public' is missing.*--set aggregation.public.kind=synthetic",
        ),
        (
            ["aggregation={ rule = 'distillation', public = { kind = 'file', path = 'x.npz' } }"],
            "'aggregation.public.statement' is missing.*a sentence of 10 to 500 characters",
        ),
        (["privacy.epsilon="], "'privacy.epsilon' is missing: add it, or .* without 'dp-'"),
        (
            ["sampler.kind=sgld"],
            "'sgld' is not private: choose 'dp-sgld', or remove epsilon, coupling if nothing is",
        ),
        (["sampler.kind=sgld", "privacy={epsilon=2}"], "or remove epsilon if nothing"),
        (
            ["privacy.noise_standard_deviation=2"],
            "'dp-sgld' is private: choose 'sgld', or remove noise_standard_deviation",
        ),
        (["privacy={nonsense=2}", "sampler.kind=sgld"], "unknown key 'privacy.nonsense'"),
        ([*DROPOUT, "model={kind='logistic'}"], "has none: choose"),
        ([*DROPOUT, "model={kind='mlp', frozen_body={seed=1}}"], "are fixed: remove frozen_body"),
        (
            ["privacy.clipping=global"],
            "privacy.clipping is 'global': it must be a table.*kind = 'global'",
        ),
        (["training=3"], "training is 3: it must be a table; its keys are burn_in"),
        (
            ["model={kind='cnn', features={kind='scattering'}}"],
            "features: model.kind 'cnn' takes none: remove it",
        ),
        (["privacy.clipping.kind=global", "privacy.clipping.bound=0.01"], "clipping.bound is 0.01"),
        *(
            ([f"sites.held-out.prevalence={given}"], r"data\.prevalence is not: declare there")
            for given in ("[0.1,0.9]", "estimated")
        ),
        (["data.prevalence=[0.5,0.6]"], "sum to 1.1: they must sum to 1"),
        *(([f"data.prevalence=[{share},1.0]"], "has share") for share in ("0.0", "5e-324")),
        (
            [
                "data.prevalence=[0.5,0.5]",
                "sites.held-out.prevalence=estimated",
                "evaluation={release='noised', noise_multiplier=2.0}",
            ],
            "does not cover: declare numbers",
        ),
        (["recalibration={rounds=7}"], "must divide steps"),
        (["recalibration={scope='site', rounds=2}"], "nothing is combined"),
        (["recalibration={fraction=0.9}"], "leaves nothing to train on"),
        (["recalibration={method='beta'}"], "recalibration: method 'beta'"),
    ],
)
def test_wrong_key_or_value_is_named_in_one_line(overrides: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        load_scenario("digits", overrides)
    assert "\n" not in str(raised.value)


def test_example_for_a_missing_key_is_one() -> None:
    with pytest.raises(UserError) as caught:
        load_scenario("digits", ["aggregation.rule=distillation"])
    given = re.findall(r"--set ([^ ,]+)", str(caught.value))
    rule = load_scenario("digits", ["aggregation.rule=distillation", *given]).aggregation
    assert rule.public.pattern == "strokes"


def table_scenario(folder: Path, path: str) -> Path:
    source = f'data.source={{kind="table", path="{path}", label="y", classes=2, features=["x"]}}'
    scenario = load_scenario("digits", [source, "simulation.insecure_seed=1"])
    write_scenario(scenario, folder / "resolved.toml")
    return folder / "resolved.toml"


def test_resolved_scenario_finds_its_records_anywhere_and_their_place_names_no_run(
    tmp_path: Path, monkeypatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    resolved = table_scenario(tmp_path, "patients.csv")
    monkeypatch.chdir(tmp_path / "there")
    assert load_scenario(str(resolved)).data.source.path == tmp_path / "here" / "patients.csv"
    # A seeded run has the same name wherever its records lie, and with traces.
    first = load_scenario(str(table_scenario(tmp_path, "a/patients.csv")))
    moved = load_scenario(
        str(table_scenario(tmp_path, "/b/patients.csv")), ["simulation.traces=true"]
    )
    other = load_scenario(str(table_scenario(tmp_path, "/b/others.csv")))
    assert digest(first) != digest(moved)
    assert run_identifier(first) == run_identifier(moved) != run_identifier(other)


@pytest.mark.parametrize("sampler", ["dp-adam", "dp-bbp", "dp-mc-dropout"])
def test_noise_for_a_temperature_that_the_sampler_lacks_is_refused(sampler: str) -> None:
    overrides = ["model={kind='mlp'}", "aggregation.rule=mixture", f"sampler.kind={sampler}"]
    refused(
        r"privacy.coupling is 'floor'.*set privacy.coupling = 'constant'",
        load_scenario,
        "digits",
        overrides,
    )
    load_scenario("digits", [*overrides, "privacy.coupling=constant", "privacy.temperature="])
    public = [*overrides[:2], f"sampler.kind={sampler.removeprefix('dp-')}"]
    warm = [*public, "privacy={temperature=1.0}"]
    refused(r"privacy.temperature is 1: .*remove", load_scenario, "digits", warm)
    load_scenario("digits", [*public, "privacy={}"])


def test_too_few_samples_for_the_rule_are_found_before_the_run() -> None:
    full = load_scenario("digits", ["aggregation.rule=product-full"])
    refused(
        "needs 654 samples of each site for 650 parameters, training keeps 10",
        plan_sites,
        full,
        None,
    )
    plan_sites(load_scenario("digits", ["aggregation.rule=product-diagonal"]), None)


@pytest.mark.parametrize(
    ("sampler", "rule"),
    [
        ("dp-sgld", "fald"),
        ("dp-adam", "fald"),
        ("dp-bbp", "mixture"),
        ("dp-mc-dropout", "mixture"),
    ],
)
def test_scenario_without_a_rule_gets_the_one_that_measured_best_where_states_can_be_averaged(
    sampler, rule
) -> None:
    content = load_scenario("digits").model_dump(mode="json")
    content["sampler"] = {"kind": sampler, "step_size": {"kind": "constant", "initial": 0.5}}
    content["model"] = {"kind": "mlp"}
    content["privacy"] |= {"coupling": "constant", "temperature": None}
    for section in ({}, {"site_weights": "uniform"}):
        scenario = read_record(Scenario, content | {"aggregation": section}, "test")
        weights = section.get("site_weights", "units")
        assert (scenario.aggregation.rule, scenario.aggregation.site_weights) == (rule, weights)
    del content["aggregation"]
    assert read_record(Scenario, content, "test").aggregation.rule == rule


def test_every_shipped_scenario_is_valid_and_an_unknown_one_lists_them() -> None:
    for name in shipped_scenarios():
        assert load_scenario(name).name == name
    refused("digits", load_scenario, "no-such-scenario")
