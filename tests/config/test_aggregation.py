"""The section [aggregation]: each rule has its own keys, and contradictions are refused in one line."""

from pathlib import Path

import pytest

from fl_dpbayes.config.aggregation import Mixture
from fl_dpbayes.config.scenario import load_scenario, write_scenario
from fl_dpbayes.data.simulation import run_identifier
from fl_dpbayes.errors import UserError
from tests.asking import refused

RULES = {
    "mixture": (1.0, 1, "units"),
    "fald": (0.25, 1, "units"),
    "fedavg": (0.25, 1, "units"),
    "fedbe": (0.25, 1, "units"),
    "fedpa": (0.25, 1, "uniform"),
    "consensus-full": (0.25, 14, "uniform"),
    "consensus-diagonal": (0.25, 5, "uniform"),
    "consensus-uniform": (0.25, 1, "uniform"),
    "product-full": (0.25, 14, "uniform"),
    "product-diagonal": (0.25, 5, "uniform"),
    "distillation": (1.0, 1, "units"),
    "predbayes": (1.0, 1, "uniform"),
}
SYNTHETIC = "public={kind='synthetic'}"
FILE = "public={kind='file', path='some/public.npz', statement='published by its authors'}"


def section(*overrides: str):
    # Enough samples in every round for any rule.
    training = "training={rounds=2, steps_per_round=20, burn_in=10, thinning=2}"
    return load_scenario("digits", [training, *overrides]).aggregation


@pytest.mark.parametrize("name", RULES)
def test_rule_knows_what_it_asks_of_four_sites_with_ten_parameters(name: str) -> None:
    public = ["aggregation.public.kind=synthetic"] if name in ("distillation", "predbayes") else []
    rule = section(f"aggregation.rule={name}", *public)
    assert rule.rule == name
    assert (rule.prior_share(4), rule.least_samples(10), rule.weighing) == RULES[name]
    if name.startswith("product"):
        assert (
            section(f"aggregation.rule={name}", "aggregation.prior=divided").prior_share(4) == 1.0
        )


@pytest.mark.parametrize(
    "content",
    [
        "{rule='fald', robust='trimmed-mean', trimmed=1, site_weights='uniform', move_bound=2.5}",
        "{rule='fedbe', draws=0, spread=0.1}",
        "{rule='product-diagonal', prior='divided', draws=7}",
        *(f"{{rule='predbayes', beta={beta}, {FILE}}}" for beta in ("0", "1", "0.3", "'fitted'")),
    ],
)
def test_resolved_section_reads_back_as_itself(tmp_path: Path, content: str) -> None:
    scenario = load_scenario("digits", [f"aggregation={content}"])
    assert (
        FILE not in content or scenario.aggregation.public.path == Path("some/public.npz").resolve()
    )
    write_scenario(scenario, tmp_path / "scenario.toml")
    assert load_scenario(str(tmp_path / "scenario.toml")) == scenario


WRONG = {
    "{rule='product-full', site_weights='units'}": (
        "unknown key 'aggregation.site_weights'",
        "allowed here: draws",
    ),
    "{rule='mixture', robust='median'}": ("unknown key 'aggregation.robust'",),
    "{rule='pvi'}": ("aggregation: rule 'pvi'", "'mixture'"),
    "{rule='fald', robust='median'}": (
        "robust 'median' counts all sites alike",
        "site_weights = 'uniform'",
    ),
    "{rule='fald', robust='trimmed-mean', site_weights='uniform'}": ("trimmed", "exactly with"),
    "{rule='fald', trimmed=1}": ("trimmed", "exactly with"),
    "{rule='fedavg', robust='trimmed-mean', trimmed=2, site_weights='uniform'}": (
        "trimmed is 2 for 4 training sites",
    ),
    "{rule='fedavg', move_bound=0.5}": ("move_bound is 0.5", "or 'none'"),
    "{rule='fald', move_bound='off'}": ("move_bound is 'off'", "from 1 on"),
    "5": ("aggregation is 5",),
    f"{{rule='mixture', {SYNTHETIC}}}": ("unknown key 'aggregation.public'",),
    "{rule='distillation', public={kind='internet'}}": (
        "aggregation.public: kind 'internet': choose one of",
    ),
    "{rule='distillation', public={kind='file', path='x',statement='            '}}": (
        "aggregation.public.statement",
    ),
    "{rule='distillation', public={kind='synthetic', path='x.npz'}}": (
        "unknown key 'aggregation.public.path'",
    ),
    f"{{rule='predbayes', site_weights='units', {SYNTHETIC}}}": (
        "unknown key 'aggregation.site_weights'",
    ),
    f"{{rule='predbayes', beta=1.5, {SYNTHETIC}}}": ("beta is 1.5: give a number from 0",),
    f"{{rule='predbayes', beta=true, {SYNTHETIC}}}": ("beta is True: give a number from 0",),
    f"{{rule='predbayes', beta='fitted', {SYNTHETIC}}}": (
        "beta 'fitted' needs public records with labels",
    ),
}


@pytest.mark.parametrize("content", WRONG)
def test_contradiction_is_refused_in_one_line(content: str) -> None:
    with pytest.raises(UserError) as caught:
        section(f"aggregation={content}")
    assert "\n" not in str(caught.value)
    for expected in WRONG[content]:
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "sampler", "said"),
    [
        ("product-diagonal", "sampler.kind=dp-adam", "known temperature"),
        ("consensus-full", "sampler.kind=dp-bbp", "choose rule 'mixture'"),
        ("fald", "sampler.kind=dp-mc-dropout", "averages states"),
        ("product-diagonal", "sampler.prior.kind=laplace", "'laplace' is none"),
        ("fedpa", "sampler.prior.kind=laplace", "Gaussian prior"),
    ],
)
def test_rule_that_does_not_fit_the_chains_is_refused(rule: str, sampler: str, said: str) -> None:
    refused(said, section, f"aggregation.rule={rule}", "model.kind=mlp", sampler)
    section(
        "aggregation.rule=mixture",
        "model.kind=mlp",
        sampler,
        "privacy.coupling=constant",
        "privacy.temperature=",
    )


@pytest.mark.parametrize("sites", [2, 3, 6, 7, 49, 9999])
def test_largest_share_that_the_sites_cannot_keep_is_refused_and_the_recommended_one_is_not(
    sites,
) -> None:
    refused(
        "is 0.2499, but 4 training sites .* 0.25 or more",
        section,
        "aggregation.largest_share=0.2499",
    )
    sampler = load_scenario("digits").sampler
    with pytest.raises(ValueError, match="raise it to") as caught:
        Mixture(largest_share=0.5 / sites).check(sampler, sites)
    least = float(str(caught.value).split("raise it to ")[1].split()[0])
    Mixture(largest_share=least).check(sampler, sites)


def test_name_of_a_seeded_run_does_not_say_where_the_public_file_lies() -> None:
    seeded = "simulation.insecure_seed=1"
    rule = f"aggregation={{rule='distillation', {FILE}}}"
    paths = ("some/public", "else/public", "else/another")
    here, there, other = (
        load_scenario("digits", [seeded, rule.replace(paths[0], path)]) for path in paths
    )
    assert run_identifier(here) == run_identifier(there) != run_identifier(other)
