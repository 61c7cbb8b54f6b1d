"""Our accounting agrees with others', and the server's memory does not grow with the number of sites."""

import io
import json
import re
import sys
import time

import pytest
from rich.console import Console

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.task import LogisticModel
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.run.bench import accounting as bench_accounting
from fl_dpbayes.run.bench import clip
from fl_dpbayes.run.bench.memory import bench_memory
from fl_dpbayes.run.bench.simulation import STAGES, StageClock, bench_simulation, sizes


@pytest.mark.slow
def test_peak_is_far_below_what_the_sites_sent(tmp_path):
    console = Console(width=200, file=io.StringIO(), record=True)
    bench_memory(console, folder=tmp_path, sites=75, samples=20, parameters=100_000)
    assert list(tmp_path.iterdir()) == []
    shown = dict(re.findall(r"│ (.+?) +│ ([\d.]+) MiB", console.export_text()))
    names = ("samples of all sites", "resident before the run", "greatest resident memory")
    # All samples are 570 MiB; without reading piece by piece the peak is above them, and twice that when written.
    stored, before, peak = (float(shown[name]) for name in names)
    assert stored > 550
    assert peak - before < 270


def test_too_small_a_disk_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="MiB left"):
        bench_memory(Console(), sites=9999, samples=1000, parameters=50_000_000, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_bench_prints_every_method_and_they_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    few = (GaussianEvent(1.5, 0.1, 3), GaussianEvent(2.0, 0.1, 3))
    monkeypatch.setattr(bench_accounting, "FEW", few)
    monkeypatch.setattr(bench_accounting, "MANY", few)
    console = Console(width=200, file=io.StringIO(), record=True)
    bench_accounting.bench_accounting(console)
    rows = [line.split("│") for line in console.export_text().splitlines() if line.startswith("│")]
    methods = ["PLD of fl_dpbayes", "RDP of fl_dpbayes", "PLD of dp-accounting", "PRV of Opacus"]
    assert [row[2].strip() for row in rows[:4]] == methods
    ours, dp_accounting, opacus = (float(rows[index][5]) for index in (0, 2, 3))
    assert ours == pytest.approx(dp_accounting, rel=1e-3)
    assert ours - 1e-3 <= opacus <= ours + 0.03


@pytest.mark.slow
def test_clip_prints_ours_beside_every_peer(monkeypatch, capsys):
    monkeypatch.setattr(clip, "CASES", {"tiny": clip.Case(LogisticModel(), (6,), 16)})
    clip.bench_clip(Console(quiet=True), models="TIN", repeats=1, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["ratios"].keys() == set(clip.METHODS)
    assert min(row["ratios"].values()) > 0
    console = Console(width=150, file=io.StringIO(), record=True)
    clip.bench_clip(console, models="", repeats=1, as_json=False)
    assert re.search(r"tiny +│ +16 │", console.export_text())
    with pytest.raises(UserError, match="--models 'big' names none of them: give a part of one of tiny"):
        clip.bench_clip(console, models="big", repeats=1, as_json=True)


def test_missing_peer_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"dp-accounting is not installed: pip install 'fl-dpbayes\[bench\]'"):
        bench_accounting.bench_accounting(Console())


@pytest.mark.slow
def test_every_second_of_a_simulation_is_some_stages(tmp_path):
    console = Console(width=200, file=io.StringIO(), record=True)
    bench_simulation(console, [12], rounds=2, engine="inline", folder=tmp_path, as_json=True)
    (twelve,) = json.loads(console.export_text())
    assert (twelve["sites"], sizes(300)) == (12, [10, 100, 300])
    assert all(twelve[f"{stage}, CPU s"] > 0 for stage in (*STAGES, "server"))
    assert sum(twelve[f"{stage}, CPU s"] for stage in (*STAGES, "server")) < twelve["run, s"] + 0.5


def test_a_stage_counts_no_second_of_a_stage_within_it():
    clock = StageClock()

    def work(seconds: float) -> None:
        start = time.thread_time()
        while time.thread_time() - start < seconds:
            pass

    inner = clock.timed("inner", lambda: work(0.02))
    clock.timed("outer", lambda: (work(0.01), inner(), inner()))()
    assert clock.seconds["inner"] == pytest.approx(0.04, rel=0.2)
    assert clock.seconds["outer"] == pytest.approx(0.01, rel=0.5)
