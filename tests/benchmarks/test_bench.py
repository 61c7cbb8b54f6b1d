"""Rows are kept and not measured again, our accounting agrees with others', and the server's memory does not grow."""

import io
import json
import os
import sys
import time
from functools import partial

import pytest
from rich.console import Console

from benchmarks import accounting, clip, end_to_end, measure, memory, simulation, sizes
from benchmarks.measure import Sizes, measure_rows
from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.task import LogisticModel
from fl_dpbayes.errors import UserError
from fl_dpbayes.privacy.events import GaussianEvent

SMALL = Sizes(repeats=1, sites=10, engine="inline")


@pytest.fixture(autouse=True)
def on_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the tests that follow in this process all cores."""
    monkeypatch.setattr(clip, "on_one_core", lambda: None)
    monkeypatch.setattr(sizes, "on_one_core", lambda: None)


def test_rows_are_kept_printed_and_not_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "alone", lambda work: work())
    kept, console = tmp_path / "rows.json", Console(width=100, file=io.StringIO(), record=True)
    refused = partial(load_scenario, "digist")
    rows = {"first": partial(dict, result=4), "second": partial(dict, result=6), "broken": refused}
    measure_rows("made up", rows, "FIRST", str(kept), console)
    assert json.loads(kept.read_text())["rows"]["first"]["result"] == 4
    with pytest.raises(UserError, match="digist"):
        measure_rows("made up", rows | {"first": refused}, "", str(kept), console)
    found = json.loads(kept.read_text())
    assert (found["rows"].keys(), found["benchmark"]) == ({"first", "second"}, "made up")
    assert found["machine"]["cores"] >= 1
    assert "result" in console.export_text()
    measure_rows("made up", {"first": refused}, "", str(kept), console)
    with pytest.raises(UserError, match="another benchmark"):
        measure_rows("other", {"first": refused}, "", str(kept), console)
    kept.write_text("no JSON")
    with pytest.raises(UserError, match="another benchmark"):
        measure_rows("made up", {"first": refused}, "", str(kept), console)
    with pytest.raises(UserError, match="cannot be written"):
        measure_rows("made up", rows, "", str(tmp_path / "absent" / "rows.json"), console)
    with pytest.raises(
        UserError, match="--only 'none' names no row: give a part of one of first, second"
    ):
        measure_rows("made up", rows, "none", None, console)


@pytest.mark.slow
def test_work_is_done_in_a_process_of_its_own_whose_end_is_told():
    assert measure.alone(os.getpid) != os.getpid()
    with pytest.raises(UserError, match="the measured process was ended"):
        measure.alone(partial(os._exit, 3))


@pytest.mark.slow
def test_peak_is_far_below_what_the_sites_sent():
    found = measure.alone(partial(memory.kept_samples, 40))
    # All samples are 309 MiB; without reading piece by piece the peak is above them, and twice that
    # when written.
    assert found["samples of all sites, MiB"] > 300
    assert found["peak, MiB"] - found["before the run, MiB"] < 250


@pytest.mark.slow
def test_every_method_of_accounting_agrees(monkeypatch):
    few = (GaussianEvent(1.5, 0.1, 3), GaussianEvent(2.0, 0.1, 3))
    for name in ("FEW", "MANY", "EACH"):
        monkeypatch.setattr(accounting, name, few)
    found = {name: work()["epsilon"] for name, work in accounting.rows(SMALL).items()}
    methods = ("PLD of fl_dpbayes", "PLD of dp-accounting", "PRV of Opacus")
    ours, dp_accounting, opacus = (found[f"{name}, 2 levels"] for name in methods)
    assert ours == pytest.approx(dp_accounting, rel=1e-3)
    assert ours - 1e-3 <= opacus <= ours + 0.03
    assert found["a plan of 1000 levels and its replies"] == ours


def test_missing_peer_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(
        UserError, match=r"dp-accounting is not installed: pip install 'fl-dpbayes\[bench\]'"
    ):
        accounting.rows(SMALL)


@pytest.mark.slow
def test_clip_measures_ours_beside_every_peer(monkeypatch):
    monkeypatch.setattr(clip, "alone", lambda work: work())
    found = clip.compared(clip.Case(LogisticModel(), (6,), 16), 1)
    methods = ("ours", "ghost", "hooks", "functorch", "func.vmap")
    assert min(found[name] for name in methods) > 0
    assert found["MiB beyond plain"] < 100


@pytest.mark.slow
def test_sizes_measure_a_width_beside_16_and_a_batch_beside_opacus_at_its_fastest():
    rows = sizes.rows(SMALL)
    assert {f"logistic, width {width}" for width in (5, 9, 13, 14, 25, 30, 50, 126)} <= rows.keys()
    assert {f"MLP 784-64-10, batch {batch}" for batch in (16, 64, 256, 1024)} <= rows.keys()
    wide = rows["logistic, width 13"]()
    assert wide["rows a pass"] >= 1
    assert wide["over width 16"] > 0
    beside = rows["linear 300-10, batch 16"]()
    assert beside["ours"] > 0
    assert any(beside.get(mode, 0) > 0 for mode in sizes.OPACUS)


@pytest.mark.slow
def test_every_second_of_a_simulation_is_some_stage():
    found = simulation.simulated(partial(simulation.growing_scenario, 12, 2), "inline")
    stages = [found[f"{stage}, CPU s"] for stage in dict.fromkeys(simulation.STAGES.values())]
    assert sum(stages) == pytest.approx(found["CPU s"])
    assert [
        found[f"{stage}, CPU s"] > 0 for stage in ("chain", "evaluation", "ledger", "server")
    ] == 4 * [True]
    assert Sizes(1, 300, "inline").growing == [10, 100, 300]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_both_programs_spend_the_same_and_learn_as_much(monkeypatch):
    sites = "a={role='train'},b={role='train'},official={role='held_out',records=400}"
    training = [
        "training={rounds=10,steps_per_round=10,burn_in=50,thinning=10}",
        "privacy.delta=1e-3",
    ]
    made = [
        f"sites={{{sites}}}",
        "data.source.kind=digits",
        "partition={kind='iid'}",
        "privacy.epsilon=50",
        *training,
    ]
    monkeypatch.setattr(
        end_to_end,
        "federation",
        lambda step, seed: load_scenario("scenarios/bench/mnist.toml", made),
    )
    ours, peer = end_to_end.ours(1.0, 0), end_to_end.with_opacus(1.0, 0)
    assert ours["epsilon"] == pytest.approx(peer["epsilon"], rel=1e-9)
    assert min(ours["test accuracy"], peer["test accuracy"]) > 0.7
    assert ours["test accuracy"] == pytest.approx(peer["test accuracy"], abs=0.08)
    assert peer.keys() <= ours.keys()


def test_time_belongs_to_the_innermost_stage():
    def frames(*files):
        frame = None
        for file in files:
            code = compile("import sys; found = sys._getframe()", file, "exec").replace(
                co_filename=file
            )
            frame = type("Frame", (), {"f_code": code, "f_back": frame})()
        return frame

    assert (
        simulation.stage_of(frames("/a/server/loop.py", "/a/clients/train.py", "/numpy/core.py"))
        == "site, other"
    )
    ledger = frames(
        "/a/clients/train.py", "/a/fl_dpbayes/privacy/ledger/file.py", "/python/sqlite3.py"
    )
    assert (simulation.stage_of(ledger), simulation.stage_of(frames("/a/b.py"))) == (
        "ledger",
        "other",
    )


def test_cpu_seconds_are_counted():
    with simulation.cpu_by_stage() as (spent, clock):
        start = time.process_time()
        while time.process_time() - start < 0.1:
            pass
    assert sum(spent.values()) == pytest.approx(0.1, rel=0.2)
    assert clock == sorted(clock)


def test_what_is_loaded_before_all_else_is_told(monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert "preloaded" not in measure._machine()
    monkeypatch.setenv("LD_PRELOAD", "/somewhere/another_maker.so")
    assert measure._machine()["preloaded"] == "another_maker.so"


def test_a_gpu_is_measured_where_one_is_alone(monkeypatch, refusal) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no CUDA device is here" in refusal("bench", "gpu")
