"""Studies whose cells run in this process."""

from collections.abc import Iterator, Sequence

import pytest

from fl_dpbayes.run.study import study as engine
from fl_dpbayes.run.study.cell import CellJob, CellOutcome, run_cell


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run cells in this process, and note which."""
    ran: list[str] = []

    def run_here(jobs: Sequence[CellJob], workers: int, address: str | None) -> Iterator[CellOutcome]:
        for job in jobs:
            ran.append(job.cell.title)
            yield run_cell(job)

    monkeypatch.setattr(engine, "run_on_ray", run_here)
    return ran
