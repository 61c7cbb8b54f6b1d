"""What a run cost sites beside training: recalibration and noised test results, each on units of its own."""

from collections.abc import Mapping
from typing import Any

from fl_dpbayes.protocol.train import PrivacyStatement
from fl_dpbayes.report.run_files import PRIVACY_COLUMNS, write_csv
from server.run_record import RunRecord, cost_cells
from server.strategies.strategy import PosteriorStrategy


def write_further_costs(strategy: PosteriorStrategy, record: RunRecord) -> None:
    """Add to `privacy.csv` a row, without a round, for each site that paid for more than training.

    Args:
        strategy: the run's strategy, after its last round.
        record: the rows of training.
    """
    spent: dict[str, Mapping[str, PrivacyStatement]] = {
        "recalibration": strategy.recalibration.statements if strategy.recalibration else {},
        "evaluation": strategy.evaluation.statements if strategy.evaluation else {},
    }
    rows: list[dict[str, Any]] = [
        {"site": site, "status": "OK", "purpose": purpose} | cost_cells(statement)
        for purpose, statements in spent.items()
        for site, statement in statements.items()
    ]
    if rows:
        write_csv(record.run_folder / "privacy.csv", [*record.privacy_rows, *rows], PRIVACY_COLUMNS)
