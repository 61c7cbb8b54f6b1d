"""Benchmarks come with the source tree, and an installed package says so in one line."""

from pathlib import Path

import pytest

from fl_dpbayes.commands import bench


def test_an_installed_package_says_where_benchmarks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal
) -> None:
    assert "--only 'no such row' names no row" in refusal(
        "bench", "memory", "--only", "no such row"
    )
    monkeypatch.setattr(bench, "SOURCE_TREE", tmp_path)
    message = refusal("bench", "memory")
    assert "benchmarks come with the source tree" in message
    assert message.count("\n") == 1
