"""Files that a resume reads, damaged in every way: refused in one line, or proven harmless."""

import os
import random
import shutil
import threading
from collections.abc import Callable
from functools import partial, reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fl_dpbayes.config.scenario import load_scenario
from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.data.simulation import plan_sites, prepare_simulation
from fl_dpbayes.data.site_ledger import prepare_simulated_ledger
from fl_dpbayes.engine.inline_engine import run_inline
from fl_dpbayes.engine.resume import resume_run
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.run_store import STORE_FILE, RunStore
from server.checkpoint import read_rounds, save_round, server_state
from server.strategies.moves import MOVES, SEED
from server.strategies.strategy import PosteriorStrategy
from tests.resumed import assert_same_run
from tests.server.conftest import Cut

OVERRIDES = [
    "training={rounds=3, steps_per_round=2, burn_in=0, thinning=1}",
    "aggregation.rule=mixture",
    "privacy.coupling=constant",
    "privacy.temperature=",
    "privacy.sampling_rate=1.0",
    "simulation.insecure_seed=5",
]
REFUSED = (STORE_FILE, "sites/00-north.toml", "sites/00-north.npy", "scenario.toml")
FLIPS = 400
GONE_ON_WITH = 3
# What a display or a person reads; a run writes it anew or does without.
HARMLESS = ("events.jsonl", "privacy.csv", "rounds.csv", "flower.log", "run.lock")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory):
    """An unbroken run, and the same one cut off after its second round."""
    scenario, folder = load_scenario("digits", OVERRIDES), tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.federation.write_report", lambda folder: None)
        patch.setattr("fl_dpbayes.engine.resume.show_run", lambda folder, console: None)
        for name in ("unbroken", "cut"):
            prepare_simulation(scenario, plan_sites(scenario, None), folder / name)
        run_inline(folder / "unbroken", len(scenario.sites), threading.Event())
        with pytest.MonkeyPatch.context() as cutting:
            cut_after_round(cutting, 2)
            with pytest.raises(Cut):
                run_inline(folder / "cut", len(scenario.sites), threading.Event())
        (folder / "cut" / "run.lock").touch()
        yield folder


def cut_after_round(patch: pytest.MonkeyPatch, number: int) -> None:
    save = PosteriorStrategy.save

    def save_and_die(self: PosteriorStrategy, round_number: int, state) -> None:
        save(self, round_number, state)
        if round_number == number:
            raise Cut

    patch.setattr(PosteriorStrategy, "save", save_and_die)
    patch.setattr("server.federation._write", lambda *_, **__: None)


@pytest.fixture
def cut(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs / "cut", tmp_path / "run"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes()) or bytearray(1)
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


DAMAGES: dict[str, Callable[[Path], None]] = {
    "flipped bit": flip,
    "truncated": truncate,
    "missing": Path.unlink,
}


def resume(folder: Path) -> None:
    resume_run(folder, None, "inline", None, Console(quiet=True))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def refused(folder: Path) -> str:
    """Return what a refused resume says; it changes nothing."""
    before = contents(folder)
    with pytest.raises(UserError) as caught:
        resume(folder)
    assert contents(folder) == before
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", REFUSED)
def test_damaged_file_is_refused_by_name(cut: Path, name: str, damage: str) -> None:
    DAMAGES[damage](cut / name)
    text = refused(cut)
    assert f"{cut / name}" in text or f"{cut} has no {name}" in text
    assert "put back a copy" in text or "put it back" in text


def test_stray_file_where_files_are_looked_up_is_refused(cut: Path) -> None:
    stray = cut / "sites/00-other.toml"
    shutil.copy(cut / "sites/00-north.toml", stray)
    assert f"{stray} is no file of this run: move it out of the folder" in refused(cut)


@pytest.mark.slow
def test_what_a_resume_does_not_read_changes_nothing(runs: Path, tmp_path: Path) -> None:
    for damage, change in DAMAGES.items():
        folder = Path(shutil.copytree(runs / "cut", tmp_path / damage))
        for name in HARMLESS:
            change(folder / name)
        for stray in (
            "run (copy).sqlite",
            "notes.txt",
            "sites/more.npy",
            "sites/.00-north.toml.partial",
        ):
            (folder / stray).write_bytes(b"?")
        resume(folder)
        assert_same_run(folder, runs / "unbroken")


def test_run_whose_store_is_gone_is_not_begun_again(cut: Path) -> None:
    (cut / STORE_FILE).unlink()
    assert f"{cut / STORE_FILE} is missing: put back a copy of it" in refused(cut)
    for command in (RunStore.open, partial(RunStore.open, to_read=True)):
        with pytest.raises(UserError, match="is missing"):
            command(cut)


def test_run_of_an_older_version_is_named_as_one(cut: Path) -> None:
    # Its sites hold the digest of a plan that was written otherwise.
    with RunStore.open(cut) as store:
        last = read_rounds(store)[-1]
        older = last.checkpoint.model_copy(update={"format": 4})
        save_round(store, last.model_copy(update={"checkpoint": older}), server_state(store))
    assert "cannot be read (an older version of fl-dpbayes wrote it)" in refused(cut)
    (cut / STORE_FILE).unlink()
    for name in ("checkpoint.safetensors", "journal.jsonl"):
        (cut / name).touch()
        assert f"a run of an older version of fl-dpbayes ({name}): finish it" in refused(cut)


@pytest.mark.slow
def test_flipped_bits_of_the_store_are_found_or_lie_where_nothing_is(
    cut: Path, runs: Path, tmp_path: Path
) -> None:
    path = cut / STORE_FILE
    good = path.read_bytes()
    with RunStore.open(cut) as store:
        expected = content_of(store)
    generator = random.Random(1)
    unfound = []
    told = []
    for place in generator.sample(range(len(good)), FLIPS):
        path.write_bytes(flipped(good, place, generator.randrange(8)))
        try:
            with RunStore.open(cut) as store:
                assert content_of(store) == expected
            unfound.append(path.read_bytes())
        except UserError as error:
            told.append(str(error))
    assert len(unfound) < FLIPS / 2
    assert all(str(path) in text and "\n" not in text for text in told)
    # Where one is not found, going on ends as it would have without it.
    for number, content in enumerate(generator.sample(unfound, GONE_ON_WITH)):
        folder = Path(shutil.copytree(runs / "cut", tmp_path / f"unfound-{number}"))
        (folder / STORE_FILE).write_bytes(content)
        resume(folder)
        assert_same_run(folder, runs / "unbroken")


def flipped(content: bytes, place: int, bit: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]


def content_of(store: RunStore) -> list[str]:
    """Return all that a store holds, as SQL."""
    return list(store._connection.iterdump())


@pytest.mark.slow
def test_a_run_folder_that_was_moved_goes_on(cut: Path, runs: Path, tmp_path: Path) -> None:
    moved = tmp_path / "on another disk" / "run"
    moved.parent.mkdir()
    cut.rename(moved)
    resume(moved)
    assert_same_run(moved, runs / "unbroken")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("posterior.safetensors", "flipped bit"),
        ("posterior.safetensors", "missing"),
        ("summary.json", "truncated"),
        ("privacy.csv", "flipped bit"),
    ],
)
def test_damaged_result_of_a_finished_run_is_refused_and_written_again(
    runs: Path, tmp_path: Path, name: str, damage: str, refusal
) -> None:
    folder = Path(shutil.copytree(runs / "unbroken", tmp_path / "run"))
    DAMAGES[damage](folder / name)
    arguments = (
        ["predict", folder, "none.csv"] if name.startswith("posterior") else ["report", folder]
    )
    said = refusal(*arguments)
    assert (said.count("\n"), str(folder) in said) == (1, True)
    assert "fl-dpbayes simulate --resume" in said
    resume(folder)
    assert_same_run(folder, runs / "unbroken")


def test_predictions_need_the_run_s_own_scenario(runs: Path, tmp_path: Path, refusal) -> None:
    folder = Path(shutil.copytree(runs / "unbroken", tmp_path / "run"))
    path = folder / "scenario.toml"
    text = path.read_text()
    for changed in (text.replace("seed = ", "seed = 1", 1), None):
        path.unlink() if changed is None else path.write_text(changed)
        assert f"{path} is missing or not the scenario of" in refusal("predict", folder, "none.csv")


@pytest.mark.slow
def test_ledgers_made_anew_stop_the_run_until_they_are_put_back(cut: Path, runs: Path) -> None:
    aside = cut.with_name("aside")
    for folder in ("ledgers", "witnesses"):
        shutil.copytree(cut / folder, aside / folder)
        shutil.rmtree(cut / folder)
    for path in (cut / "sites").glob("*.toml"):
        if read_site_file(path).ledger is not None:
            prepare_simulated_ledger(path)
    with pytest.raises(UserError, match=r"round 3: .*LEDGER_ROLLED_BACK"):
        resume(cut)
    for folder in ("ledgers", "witnesses"):
        shutil.rmtree(cut / folder)
        shutil.copytree(aside / folder, cut / folder)
    resume(cut)
    assert_same_run(cut, runs / "unbroken")


UNFIT = {
    "a file elsewhere": ({"files": {"/dev/zero": "0" * 64}}, STORE_FILE),
    "a file above": ({"files": {"sites/../../x": "0" * 64}}, STORE_FILE),
    "no name": ({"files": {"sites/\0": "0" * 64}}, STORE_FILE),
    "no table": ({"files": ["x"]}, STORE_FILE),
    "a folder": ({"files": {"sites/..": "0" * 64}}, "sites/.."),
    "no partition": ({"partition": None}, STORE_FILE),
    "a part of nobody": (
        {"partition": {"label_total_variation": 0, "warnings": [], "units": {"north": {}}}},
        STORE_FILE,
    ),
    "no baselines": ({"baselines": {"rows": [{}]}}, STORE_FILE),
}


@pytest.mark.parametrize(("content", "named"), UNFIT.values(), ids=list(UNFIT))
def test_a_store_that_a_stranger_wrote_is_refused(
    cut: Path, content: dict[str, object], named: str
) -> None:
    with RunStore.open(cut) as store:
        store.append(**content)
    with pytest.raises(UserError, match=r"^[^\n]*$") as refusal:
        resume(cut)
    assert f"{cut / named} is " in str(refusal.value)


FORGED_ROUNDS: dict[str, dict[str, object]] = {
    "a cost without delta": {"outcome.outcomes.0.reply.privacy.delta": None},
    "a cost of a text": {"outcome.outcomes.0.reply.privacy.steps": "many"},
    "another status": {"outcome.outcomes.0.status": "SPLENDID"},
    "a site of no name": {"outcome.outcomes.0.site": "\x1b[2J"},
    "a round before the first": {"outcome.round": -1},
    "a head of no ledger": {"heads": {"north": ""}},
    "a warning of no kind": {"warnings": [{"kind": "splendid"}]},
    "a warning without its values": {"warnings": [{"kind": "hot"}]},
    "a warning that divides by 0": {
        "warnings": [{"kind": "hot", "values": [["planned", 0], ["mean", 1]]}]
    },
    "a warning for a terminal": {
        "warnings": [{"kind": "no-posterior", "values": [["reason", "\x1b[2J"]]}]
    },
}


@pytest.mark.parametrize("changes", FORGED_ROUNDS.values(), ids=list(FORGED_ROUNDS))
def test_a_round_that_no_run_had_is_refused(cut: Path, changes: dict[str, object]) -> None:
    with RunStore.open(cut) as store:
        entry = store.latest("round")
        for path, value in changes.items():
            *parents, last = (int(key) if key.isdigit() else key for key in path.split("."))
            reduce(getitem, parents, entry)[last] = value
        store.append(round=entry)
    with pytest.raises(UserError, match=f"^{cut / STORE_FILE} [^\n]*$") as refusal:
        resume(cut)
    assert str(refusal.value).isprintable()


SAMPLES = {name: np.ones(1) for name in ("weights", "temperatures")}


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (
            lambda store: store.add_samples(
                "north", 0, 1, SAMPLES | {"samples/x": np.ones((1, 5))}
            ),
            "samples of 'north' have different shapes",
        ),
        (
            lambda store: store.replace_state(MOVES, 0, 2, {SEED: np.array(-1.0)}),
            "the sums of moves are not what a run keeps",
        ),
    ],
    ids=["samples", "moves"],
)
def test_arrays_that_no_run_stored_are_refused(
    cut: Path, put: Callable[[RunStore], None], said: str
) -> None:
    with RunStore.open(cut) as store:
        put(store)
        store.append()
    with pytest.raises(UserError, match=f"{STORE_FILE} is not as it was written .{said}"):
        resume(cut)


@pytest.mark.parametrize(
    "name",
    ["run.lock", "events.jsonl", "privacy.csv", "flower.log", "figures", ".summary.json.partial"],
)
def test_a_run_writes_through_no_link_of_a_stranger_and_waits_for_no_pipe(
    cut: Path, tmp_path: Path, name: str
) -> None:
    (cut / name).unlink(missing_ok=True)
    (cut / name).symlink_to(tmp_path / "other")
    # Its last line has no end: it would be cut off as one that a kill left.
    (tmp_path / "other").write_text("somebody's own")
    with pytest.raises(UserError, match=f"^{cut / name} is a link: [^\n]*$"):
        resume(cut)
    assert (tmp_path / "other").read_text() == "somebody's own"
    (cut / name).unlink()
    os.mkfifo(cut / name)
    with pytest.raises(UserError, match=f"^{cut / name} is a pipe: [^\n]*$"):
        resume(cut)


def test_a_pipe_in_the_place_of_a_site_file_is_refused(cut: Path) -> None:
    path = cut / "sites/00-north.npy"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match=f"{path} is a pipe"):
        resume(cut)
