"""What the report says of inputs that the server used beyond released samples."""

from fl_dpbayes.config.summary import parse_summary
from fl_dpbayes.report.page_tables import facts

SERVER = "Server's own inputs"
FILE = {"kind": "file", "file": "public.npz", "statement": "by its authors\x1b[2J", "count": 1200, "labelled": True}


def test_public_records_are_named_with_their_declaration(summary):
    said = facts(parse_summary(summary | {"aggregation_inputs": FILE | {"beta": 0.125, "divergence": 0.0214}}))
    assert said[SERVER] == "1,200 records of public.npz, with labels, declared public: by its authors�[2J"
    assert said["beta of PredBayes"] == "0.125"
    assert [value for name, value in said.items() if name.startswith("Divergence")] == ["0.021"]
    unread = facts(parse_summary(summary | {"aggregation_inputs": FILE | {"labelled": False}}))
    assert unread[SERVER].startswith("1,200 records of public.npz, labels not used, declared public")


def test_synthetic_inputs_claim_no_record_and_other_rules_say_nothing(summary):
    made_up = {"kind": "synthetic", "pattern": "noise", "statement": "", "count": 300, "labelled": False}
    said = facts(parse_summary(summary | {"aggregation_inputs": made_up}))
    assert said[SERVER] == "300 made-up inputs (noise), no record"
    assert "beta of PredBayes" not in said
    assert SERVER not in facts(parse_summary(summary | {"aggregation_inputs": None}))
    assert SERVER not in facts(parse_summary(summary))
