"""What a run prints at its end is set apart by blank lines."""

import io

from rich.console import Console

from fl_dpbayes.report.records import write_summary
from fl_dpbayes.run.simulate import show_run

SUMMARY = {
    "scenario": "one", "seed": 0, "versions": {}, "adjacency": "add_or_remove_one", "sites": [], "privacy": [],
    "calibration": [{"site": "north", "role": "train", "predictor": "posterior", "n": 10}],
    "bytes": {}, "seconds": {}, "configurations_tried": 1, "warnings": ["first", "second"],
}  # fmt: skip


def test_tables_and_warnings_are_set_apart(tmp_path):
    write_summary(SUMMARY, tmp_path)
    console = Console(file=io.StringIO(), width=120)
    show_run(tmp_path, console)
    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    first = lines.index("warning: first")
    assert lines[first - 1] == ""
    assert lines[first + 1] == "warning: second"
    assert lines[lines.index("Calibration") - 1] == ""
