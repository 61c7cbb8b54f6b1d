"""A run that was cut off and went on says so."""

from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.page_tables import facts


def test_rounds_after_which_a_run_went_on_are_named(summary):
    said = facts(parse_summary(summary | {"resumed_after": [0, 2]}))
    assert said["Resumed"] == "before round 1, after round 2"
    assert "Resumed" not in facts(parse_summary(summary))
