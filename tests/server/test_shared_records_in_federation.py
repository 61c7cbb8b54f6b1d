"""Shifted sites that hold one held-out site's patients, in a whole run."""

import json

import pytest

from fl_dpbayes.report.page import write_report

COPIES = [
    f"sites.{name}.{key}"
    for name, kind, severity in (("dark", "gamma", 4), ("rarer", "prevalence", 3))
    for key in ("role=shifted", "records_of=held-out", f"shift.kind={kind}", f"shift.severity={severity}")
]


@pytest.mark.slow
def test_sites_with_the_same_patients_are_not_pooled(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.federation.write_report", write_report)
    run = federation(
        *COPIES, "sites.noisy-scanner=", "sites.rotated=", "partition.kind=feature", "partition.strictness=0.8"
    )
    run.run()
    summary = json.loads((run.folder / "summary.json").read_text())
    rows = {(row["site"], row["predictor"]): row for row in summary["calibration"]}
    assert {site for site, _ in rows} >= {"pooled:train", "pooled:held_out", "held-out", "dark", "rarer"}
    assert ("pooled:shifted", "posterior") not in rows
    assert rows["dark", "posterior"]["n"] == rows["held-out", "posterior"]["n"] > rows["rarer", "posterior"]["n"]
    assert not any(row["site"] == "pooled:shifted" for row in summary["reliability"])
    told = [text for text in summary["warnings"] if "records_of" in text]
    assert len(told) == 1
    assert told[0].startswith("shifted sites hold the same records")
    assert 0.1 < summary["feature_total_variation"] < 0.75
    assert (
        summary["feature_total_variation"]
        == json.loads((run.folder / "partition.json").read_text())["feature_total_variation"]
    )
    assert (run.folder / "report.html").stat().st_size > 0


def test_one_copy_of_a_held_out_site_is_pooled(federation) -> None:
    run = federation(*COPIES[:4], "sites.noisy-scanner=", "sites.rotated=")
    run.run()
    summary = json.loads((run.folder / "summary.json").read_text())
    assert "pooled:shifted" in {row["site"] for row in summary["calibration"]}
    assert not any("records_of" in text for text in summary["warnings"])
    assert "feature_total_variation" not in summary
