"""The rules `distillation` and `predbayes` in `[aggregation]`, and their sub-section `public`."""

from pathlib import Path

import pytest

from fl_dpbayes.config.aggregation import least_samples, prior_share, weighing
from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.scenario import load_scenario, write_scenario
from fl_dpbayes.data.simulation import run_identifier

SYNTHETIC = "public={kind='synthetic'}"
FILE = "public={kind='file', path='some/public.npz', statement='published by its authors'}"


def section(content: str):
    return load_scenario("quickstart", [f"aggregation={{{content}}}"]).aggregation


@pytest.mark.parametrize(("rule", "weights"), [("distillation", "units"), ("predbayes", "uniform")])
def test_sites_target_their_own_posterior_and_one_sample_will_do(rule: str, weights: str) -> None:
    found = section(f"rule='{rule}', {SYNTHETIC}")
    assert (prior_share(found, 4), least_samples(found, 10), weighing(found)) == (1.0, 1, weights)


@pytest.mark.parametrize("beta", ["0", "1", "0.3", "'fitted'"])
def test_resolved_section_reads_back_as_itself_with_an_absolute_path(tmp_path: Path, beta: str) -> None:
    scenario = load_scenario("quickstart", [f"aggregation={{rule='predbayes', beta={beta}, {FILE}}}"])
    assert scenario.aggregation.public.path == Path("some/public.npz").resolve()
    write_scenario(scenario, tmp_path / "scenario.toml")
    assert load_scenario(str(tmp_path / "scenario.toml")) == scenario


def test_name_of_a_seeded_run_does_not_say_where_the_public_file_lies() -> None:
    seeded = "simulation.insecure_seed=1"
    here, there, other = (
        load_scenario(
            "quickstart", [seeded, f"aggregation={{rule='distillation', {FILE.replace('some/public', path)}}}"]
        )
        for path in ("some/public", "else/public", "else/another")
    )
    assert run_identifier(here) == run_identifier(there) != run_identifier(other)


WRONG = {
    "rule='distillation'": "key 'aggregation.public' is missing",
    f"rule='mixture', {SYNTHETIC}": "unknown key 'aggregation.public'",
    f"rule='distillation', beta=1, {SYNTHETIC}": "unknown key 'aggregation.beta'",
    "rule='distillation', public={kind='internet'}": "aggregation.public: kind 'internet': choose one of",
    "rule='distillation', public={kind='synthetic', count=0}": "aggregation.public.count is 0",
    "rule='distillation', public={kind='synthetic', pattern='faces'}": "aggregation.public.pattern is 'faces'",
    "rule='distillation', public={kind='file', path='x.npz'}": "key 'aggregation.public.statement' is missing",
    "rule='distillation', public={kind='file', path='x.npz', statement='public'}": "aggregation.public.statement is",
    "rule='distillation', public={kind='file', path='x.npz', statement='            '}": "aggregation.public.statement",
    "rule='distillation', public={kind='synthetic', path='x.npz'}": "unknown key 'aggregation.public.path'",
    f"rule='distillation', iterations=0, {SYNTHETIC}": "aggregation.iterations is 0",
    f"rule='predbayes', site_weights='units', {SYNTHETIC}": "unknown key 'aggregation.site_weights'",
    f"rule='predbayes', beta=1.5, {SYNTHETIC}": "beta is 1.5: give a number from 0",
    f"rule='predbayes', beta='best', {SYNTHETIC}": "beta is 'best': give a number from 0",
    f"rule='predbayes', beta=true, {SYNTHETIC}": "beta is True: give a number from 0",
    f"rule='predbayes', beta='fitted', {SYNTHETIC}": "beta 'fitted' needs public records with labels",
}


@pytest.mark.parametrize("content", WRONG)
def test_contradiction_is_refused_in_one_line(content: str) -> None:
    with pytest.raises(UserError) as caught:
        section(content)
    assert "\n" not in str(caught.value)
    assert WRONG[content] in str(caught.value)
