"""What a run warns of, once."""

import numpy as np
import pandas
import pytest
from flwr.app import Array
from rich.console import Console

from fl_dpbayes.config.sources import BuiltIn
from fl_dpbayes.data.records import load_unscaled
from fl_dpbayes.posterior.convergence import (
    ConvergenceRow,
    ConvergenceSummary,
    convergence_warnings,
    mixing_warning,
)
from fl_dpbayes.predict.stored_posterior import evaluate_records, predict_records
from fl_dpbayes.report.warnings import sentence

FOUR = ["sites.held-out=", "sites.noisy-scanner=", "sites.rotated="]
WIDE = [
    *FOUR,
    "training={rounds=1, steps_per_round=4, burn_in=3, thinning=1}",
    "privacy.coupling=floor",
]


def warnings_of(run) -> list[str]:
    run.run()
    return run.warnings()


@pytest.mark.slow
def test_noise_hotter_than_the_plan_is_said_once(federation) -> None:
    hot = federation(
        *WIDE,
        "privacy.temperature=0.001",
        "privacy.epsilon=0.1",
        "sampler.kind=dp-sghmc",
        name="hot",
    )
    (text,) = [text for text in warnings_of(hot) if "Privacy noise makes" in text]
    rows = hot.summary()["privacy"]
    hottest = max(rows, key=lambda row: row["temperature"])["site"]
    assert text.startswith(f"{hottest}, the hottest of 4 such sites")
    assert "planned 0.001" in text
    assert "Smaller steps, more friction than 0.5, a larger budget" in text
    mild = federation(*WIDE, "privacy.temperature=1000", "privacy.epsilon=4", name="mild")
    assert not any("Privacy noise makes" in text for text in warnings_of(mild))


@pytest.mark.slow
def test_posterior_of_one_sample_is_called_a_point_estimate(federation) -> None:
    one = warnings_of(federation(*WIDE[:-1], name="one"))
    assert sum("point estimate" in text for text in one) == 1
    assert not any("point estimate" in text for text in warnings_of(federation(*FOUR, name="more")))


@pytest.fixture
def any_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let replies pass that lie farther from their start than chains get, as reordered units do."""
    monkeypatch.setattr("server.strategies.rounds.check_displacement", lambda *_, **__: None)


def reorder_hidden_units(run) -> None:
    """Let site `west` number the hidden units from the other end in the first round."""

    def reordered(reply):
        for name, array in reply.content["arrays"].items():
            units = {"1.weight": -2, "1.bias": -1, "3.weight": -1}.get(name.rpartition("/")[2])
            if units is not None:
                reply.content["arrays"][name] = Array(
                    np.ascontiguousarray(np.flip(array.numpy(), units))
                )
        return reply

    run.spoil(reordered, sites=("west",), rounds=(1,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "burn_in", "said"),
    [
        ("'fald', robust='median', site_weights='uniform'", 2, True),
        ("'fedavg'", 2, True),
        ("'fedpa'", 2, True),
        ("'fedpa'", 12, True),
        ("'mixture'", 2, False),
    ],
)
def test_rule_on_weights_says_whose_hidden_units_are_in_another_order(
    federation, any_distance, rule, burn_in, said
) -> None:
    # Little noise: the start still shows in the weights. With the long burn-in a round has no
    # samples.
    settings = [
        f"aggregation={{rule={rule}}}",
        *FOUR,
        "model={kind='mlp', hidden=[8]}",
        "sampler.step_size.initial=0.01",
        f"training={{rounds=3, steps_per_round=6, burn_in={burn_in}, thinning=1}}",
    ]
    swapped = federation(*settings, name="swapped")
    reorder_hidden_units(swapped)
    reordered = "'1.weight' at site 'west' match those at 'east' better in another order"
    assert any(reordered in text for text in warnings_of(swapped)) == said
    if burn_in == 2 and said:
        assert not any(
            "another order" in text for text in warnings_of(federation(*settings, name="aligned"))
        )


@pytest.mark.slow
def test_states_of_an_optimiser_are_called_so(federation) -> None:
    rule = "aggregation={rule='mixture', largest_share=1}"
    (text,) = warnings_of(federation(*FOUR, rule, "sampler.kind=dp-sgd"))
    assert "states of the optimiser dp-sgd, not posterior samples" in text


@pytest.mark.slow
def test_point_estimate_is_called_so_once_and_has_no_epistemic_uncertainty_anywhere(
    federation, tmp_path, capsys
) -> None:
    run = federation("aggregation.rule=fedavg")
    assert [text for text in warnings_of(run) if "point" in text or "mixed" in text] == [
        "aggregation.rule 'fedavg' makes one point, whose epistemic uncertainty is "
        "unknown, not none."
    ]
    rows = run.summary()["calibration"]
    assert {
        (row["samples"], row["epistemic"], row["aleatoric"])
        for row in rows
        if row["predictor"] == "posterior"
    } == {(1, None, None)}
    records = load_unscaled(BuiltIn(kind="digits"), "train").scaled()
    archive, table = tmp_path / "digits.npz", tmp_path / "predictions.csv"
    np.savez(archive, features=records.features[:60], labels=records.labels[:60])
    predict_records(run.folder, archive, table, Console(quiet=True))
    uncertainty = pandas.read_csv(table).filter(like="_uncertainty")
    assert uncertainty["total_uncertainty"].min() > 0
    assert uncertainty[["aleatoric_uncertainty", "epistemic_uncertainty"]].isna().all(axis=None)
    evaluate_records(run.folder, archive, Console(width=100), as_json=False)
    said = capsys.readouterr().out
    assert "Point estimate (fedavg) on 60 records" in said
    assert "0.0000" not in said.partition("epistemic")[2]


@pytest.mark.slow
def test_mixture_of_sites_at_unequal_temperatures_says_so(federation) -> None:
    said = "the sites' temperatures range from"
    assert any(
        said in text
        for text in warnings_of(federation(*FOUR, "aggregation.rule=mixture", name="mixture"))
    )
    assert not any(
        said in text
        for text in warnings_of(federation(*FOUR, "aggregation.rule=fald", name="averaged"))
    )


def row(site: str, samples: int, r_hat: float) -> ConvergenceRow:
    summary = ConvergenceSummary(1, samples, 8, r_hat, r_hat, 0.5, 0.5, 9.0, 9.0)
    return ConvergenceRow(site, summary, mixing_warning(summary))


def said(rows: list[ConvergenceRow]) -> list[str]:
    return list(map(sentence, convergence_warnings(rows)))


def test_few_samples_are_one_warning_whatever_some_sites_show() -> None:
    (text,) = said([row("north", 10, 1.0), row("west", 10, 4.0), row("south", 10, 1.0)])
    assert text.startswith(
        "north, west, south: 10 samples cannot show whether the sampler has mixed: keep at least 50"
    )
    assert text.endswith("At west they already show that it has not.")


def test_other_warnings_stay_apart() -> None:
    texts = said([row("north", 10, 1.0), row("west", 60, 4.0)])
    assert [text.partition(":")[0] for text in texts] == ["north", "west"]
    assert "not mixed" in said([row("north", 10, 4.0), row("west", 10, 4.0)])[0]
