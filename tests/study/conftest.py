"""Cells of studies that run in this process."""

import pytest

from fl_dpbayes.study.cell import run_cell


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run cells in this process, and note which."""
    ran: list[str] = []
    monkeypatch.setattr(
        "fl_dpbayes.study.ray_pool.run_on_ray",
        lambda jobs, *_: (ran.append(job.cell.title) or run_cell(job) for job in jobs),
    )
    return ran
