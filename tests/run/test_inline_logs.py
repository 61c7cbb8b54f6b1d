"""What Flower logs goes to the run's file, whatever other libraries did to the root logger."""

import io
import logging
from pathlib import Path

from fl_dpbayes.run.inline_engine import logs_in


def test_root_handler_that_appears_during_a_run_sees_nothing(tmp_path: Path) -> None:
    terminal = logging.StreamHandler(io.StringIO())
    logger = logging.getLogger("flwr")
    before = logger.propagate
    with logs_in(tmp_path / "flower.log"):
        logging.getLogger().addHandler(terminal)
        try:
            logger.warning("[ROUND 2/3]")
        finally:
            logging.getLogger().removeHandler(terminal)
    assert terminal.stream.getvalue() == ""
    assert "[ROUND 2/3]" in (tmp_path / "flower.log").read_text()
    assert logger.propagate == before
