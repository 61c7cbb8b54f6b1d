"""What a run writes in a round does not depend on how many rounds there were."""

import json
from pathlib import Path

import pytest

from fl_dpbayes.config.files.journal import JOURNAL_FILE, read_journal

pytestmark = pytest.mark.slow
ROUNDS = 24


class Cut(BaseException):
    """Ends a run as a kill does."""


def written_bytes() -> int:
    """Return how many bytes this process has handed to the system so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def counted(method, total: list[int]):
    def count(*arguments, **settings):
        before = written_bytes()
        try:
            return method(*arguments, **settings)
        finally:
            total[-1] += written_bytes() - before

    return count


def test_bytes_of_a_round_do_not_grow_with_the_rounds(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    from server.run_record import RunRecord
    from server.strategies.strategy import PosteriorStrategy

    rounds = [0]
    save = counted(PosteriorStrategy.save, rounds)

    def save_and_go_on(self, round_number, state) -> None:
        save(self, round_number, state)
        rounds.append(0)

    monkeypatch.setattr(RunRecord, "add_round", counted(RunRecord.add_round, rounds))
    monkeypatch.setattr(PosteriorStrategy, "save", save_and_go_on)
    run = federation(f"training={{rounds={ROUNDS}, steps_per_round=1, burn_in=0, thinning=1}}")
    run.run()
    # Warnings come with the first round and the last.
    per_round = rounds[2:ROUNDS]
    # A number may have more digits than in an earlier round.
    assert max(per_round) - min(per_round) < 0.05 * per_round[0], per_round


def test_rows_of_a_round_without_a_checkpoint_are_dropped(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    unbroken = federation(name="unbroken")
    unbroken.run()
    run = federation()

    def die(folder, checkpoint, state) -> None:
        if checkpoint.round == 1:
            raise Cut
        write(folder, checkpoint, state)

    from server.checkpoint import write_checkpoint as write

    with monkeypatch.context() as patch:
        patch.setattr("server.strategies.intake.write_checkpoint", die)
        patch.setattr("server.federation._write", lambda *_, **__: None)
        with pytest.raises(Cut):
            run.run()
    before = [entry["round"]["round"] for entry in read_journal(run.folder / JOURNAL_FILE)[0] if "round" in entry]
    assert before == [1]
    assert len((run.folder / "rounds.csv").read_text().splitlines()) == 2
    run.run()
    after = [entry["round"]["round"] for entry in read_journal(run.folder / JOURNAL_FILE)[0] if "round" in entry]
    assert after == [1, 2]
    for name in ("posterior.safetensors", "privacy.csv", "calibration.csv"):
        assert (run.folder / name).read_bytes() == (unbroken.folder / name).read_bytes()
    summary = json.loads((run.folder / "summary.json").read_text())
    assert [len(row["statuses"]) for row in summary["participation"]] == [2] * len(summary["participation"])
