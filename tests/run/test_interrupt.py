"""An interrupted command says in one line what was kept and how to go on, and ends with status 1."""

import sys
from pathlib import Path

import pytest

from fl_dpbayes import cli


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("target", "command", "said"),
    [
        ("fl_dpbayes.run.simulate._run_and_follow", ["simulate", "quickstart", "--engine", "inline"], "privacy.csv"),
        ("fl_dpbayes.run.study.study.run_on_ray", ["reproduce", "closer-logistic"], "fl-dpbayes study --resume"),
    ],
)
def test_interrupt_is_one_line(
    target: str, command: list[str], said: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    monkeypatch.setattr(target, interrupted)
    monkeypatch.setattr(sys, "argv", ["fl-dpbayes", *command, "--out", str(folder)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("stopped: ")
    assert str(folder) in line
    assert said in line
