"""Few samples are warned of once for all sites, and of noisy factors and unused evidence without contradiction."""

from types import SimpleNamespace

import numpy as np
import pytest

from fl_dpbayes.posterior.convergence import ConvergenceSummary, convergence_warnings, mixing_warning
from fl_dpbayes.posterior.natural import NaturalGaussian
from fl_dpbayes.posterior.rules.pvi import PVIState
from fl_dpbayes.report.warnings import sentence
from server.strategies.pvi import PVIStrategy


def row(site: str, samples: int, r_hat: float) -> dict[str, object]:
    found = ConvergenceSummary(1, samples, 8, r_hat, r_hat, 0.5, 0.5, 9.0, 9.0)
    return {"site": site, "samples_per_chain": samples, "warning": mixing_warning(found)}


def said(rows: list[dict[str, object]]) -> list[str]:
    return list(map(sentence, convergence_warnings(rows)))


def test_few_samples_are_one_warning_whatever_some_sites_show() -> None:
    (text,) = said([row("north", 10, 1.0), row("west", 10, 4.0), row("south", 10, 1.0)])
    assert text.startswith("north, west, south: 10 samples cannot show whether the sampler has mixed: keep at least 50")
    assert text.endswith("At west they already show that it has not.")


def test_other_warnings_stay_apart() -> None:
    texts = said([row("north", 10, 1.0), row("west", 60, 4.0)])
    assert [text.partition(":")[0] for text in texts] == ["north", "west"]
    assert "not mixed" in said([row("north", 10, 4.0), row("west", 10, 4.0)])[0]


@pytest.mark.parametrize(("rounds", "negative"), [(2, {}), (2, {"north": 1, "east": 3}), (20, {"east": 3})])
def test_damping_is_raised_or_lowered_never_both(rounds: int, negative: dict[str, int]) -> None:
    state = PVIState(NaturalGaussian(np.ones(5), np.zeros(5)), negative=negative)
    strategy = SimpleNamespace(_damping=0.25, _refined=state, plan=SimpleNamespace(total_rounds=rounds))
    text = " ".join(map(sentence, PVIStrategy._factor_warnings(strategy)))  # type: ignore[arg-type]
    assert ("or raise damping" in text) == (rounds == 2 and not negative)
    assert ("lower the damping" in text) == (rounds == 20)
    both = "do not raise damping, since the factors are noisy (3 of 5 directions of negative precision at east)"
    assert (both in text) == (rounds == 2 and bool(negative))
