"""The temperature and the warnings of averaged chains, in whole runs in this process."""

import numpy as np
import pytest

from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.tables import privacy_table

# Every test here is a whole run.
pytestmark = pytest.mark.slow

FOUR = ["sites.held-out=", "sites.noisy-scanner=", "sites.rotated="]
REWEIGHTED, UNKNOWN, DRIFT = "targets a reweighted posterior", "no posterior of a known temperature", "drift apart"


def summary_of(run) -> dict:
    run.run()
    return run.summary()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("", None),
        (", site_weights='uniform'", REWEIGHTED),
        (", largest_share=0.26", REWEIGHTED),
        (", site_weights='uniform', robust='median'", UNKNOWN),
    ],
    ids=["units", "uniform", "capped", "median"],
)
def test_averaged_temperature_is_that_of_the_weighting_or_none(federation, settings: str, said: str | None) -> None:
    run = federation(f"aggregation={{rule='fald'{settings}}}", *FOUR)
    summary = summary_of(run)
    for text in (REWEIGHTED, UNKNOWN):
        assert any(text in warning for warning in summary["warnings"]) == (text == said)
    stored = run.posterior().temperatures
    caption = str(privacy_table(parse_summary(summary)).caption)
    assert "temp.: Langevin temperature of the noise alone, 1 is the posterior" in caption
    assert "the clipped share stays at each site" in caption
    if said == UNKNOWN:
        assert summary["averaged_temperature"] is None
        assert not stored.any()
        assert "the averaged chain's is not known" in caption
        return
    heat = np.array([row["temperature"] for row in summary["privacy"]])
    units = np.array([row["n"] for row in summary["sites"]])
    weights = {None: units / units.sum(), ", site_weights='uniform'": np.full(4, 0.25)}.get(settings if said else None)
    if weights is not None:
        expected = units.sum() * (weights**2 * heat / units).sum()
        assert summary["averaged_temperature"] == pytest.approx(expected, rel=1e-9)
        np.testing.assert_allclose(stored, expected, rtol=1e-9)
    assert f"the averaged chain's is {summary['averaged_temperature']:.3g}" in caption


@pytest.mark.parametrize(("steps", "rounds"), [(10, 8), (1, 8)])
def test_drift_of_long_rounds_is_said_at_run_time(federation, steps: int, rounds: int) -> None:
    run = federation(
        "aggregation={rule='fald'}",
        *FOUR,
        "partition.alpha=0.2",
        "partition.min_records=40",
        # So cold that what the sites differ by is not lost in the noise.
        "privacy={kind='none', sampling_rate=1.0, temperature=0.001}",
        "sampler.kind=sgld",
        f"training={{rounds={rounds}, steps_per_round={steps}, burn_in={rounds * steps // 2}, thinning={steps}}}",
    )
    assert any(DRIFT in warning for warning in summary_of(run)["warnings"]) == (steps > 1)
