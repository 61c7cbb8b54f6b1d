"""What is predicted: of each kind of outcome its loss, its prediction, and its sums.

What comes in: what is written of an outcome (`config.AnyOutcome`). What goes out: functions, which
those who train, predict and measure take as arguments.
"""

from typing import Any

from fl_dpbayes.config import AnyOutcome, implementation
from fl_dpbayes.outcomes.outcome import Adjustments, Baseline, Outcome


def outcome_of(outcome: AnyOutcome) -> Outcome[Any, Any]:
    """Return what is computed of an outcome, from the module of its kind."""
    built: Outcome[Any, Any] = implementation("fl_dpbayes.outcomes", outcome.kind).build(outcome)
    return built
