"""What a run prints at its end is set apart by blank lines."""

import io

from rich.console import Console

from fl_dpbayes.report.run_files import write_summary
from fl_dpbayes.run.simulate import show_run

SUMMARY = {
    "scenario": "one", "seed": 0, "versions": {}, "adjacency": "add_or_remove_one", "sites": [], "privacy": [],
    "calibration": [{"site": "north", "role": "train", "predictor": "posterior", "n": 10}],
    "bytes": {}, "seconds": {}, "configurations_tried": 1, "warnings": ["first", "second"],
}  # fmt: skip


def printed(folder) -> str:
    console = Console(file=io.StringIO(), width=200)
    show_run(folder, console)
    return console.file.getvalue()


def test_clipped_share_is_told_where_simulated_sites_kept_traces_and_nowhere_else(tmp_path):
    write_summary(SUMMARY, tmp_path)
    assert "clipped gradients, from" not in printed(tmp_path)
    for site, rows in {"north": ["0,3,1.0", "1,0,nan", "2,1,0.0"], "south": ["0,4,0.25"]}.items():
        folder = tmp_path / "traces" / site
        folder.mkdir(parents=True)
        (folder / "run-1.csv").write_text("\n".join(["step,units,clipped_fraction", *rows]) + "\n")
    said = "clipped gradients, from the simulated sites' own traces, which no reply carries: north 75 %, south 25 %"
    assert said in printed(tmp_path)


def test_tables_and_warnings_are_set_apart(tmp_path):
    write_summary(SUMMARY, tmp_path)
    console = Console(file=io.StringIO(), width=120)
    show_run(tmp_path, console)
    lines = [line.strip() for line in console.file.getvalue().splitlines()]
    first = lines.index("warning: first")
    assert lines[first - 1] == ""
    assert lines[first + 1] == "warning: second"
    assert lines[lines.index("Calibration") - 1] == ""
