"""Several processes on one ledger, killed processes, ledgers put back: the record holds the spend."""

import multiprocessing
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.privacy.ledger import crashes

# Set FL_DPBAYES_LEDGER_KILLS=10 for ten times as many kills and restores.
FACTOR = int(os.environ.get("FL_DPBAYES_LEDGER_KILLS", "1"))

pytestmark = pytest.mark.slow


def in_a_process_without_threads(work: Callable[..., dict], *arguments: object) -> dict:
    """Run in a process forked from one that has imported the ledger and nothing that runs threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.privacy.ledger.crashes"])
    settings = {"mp_context": context, "initializer": warnings.simplefilter, "initargs": ("error",)}
    with ProcessPoolExecutor(max_workers=1, **settings) as pool:
        return pool.submit(work, *arguments).result(timeout=900 * FACTOR)


def test_processes_on_one_ledger_never_pass_the_budget_together(tmp_path):
    result = in_a_process_without_threads(crashes.race, tmp_path, 4)
    assert result == {"admitted": 40, "recorded": 40, "problems": []}


@pytest.mark.parametrize(
    ("durability", "kills", "seed", "processes"),
    [("normal", 50, 1, 1), ("full", 80, 2, 1), ("full", 18, 4, 2)],
)
def test_kill_at_any_instant_never_leaves_the_record_below_the_true_spend(
    tmp_path, durability, kills, seed, processes
):
    report = in_a_process_without_threads(
        crashes.kills, tmp_path, durability, FACTOR * kills, seed, processes
    )
    assert (report["below"], report["lost replies"], report["problems"]) == (0, 0, [])
    # The instants were spread: some before the first reservation, some while work was open, some
    # between.
    assert report["killed with an open reservation"] > kills / 20
    assert report["killed at birth"] > 0
    # Of two processes that are killed together, one nearly always left work open.
    assert report["exact"] > 0 or processes > 1


def test_ledger_put_back_at_any_instant_is_refused_or_lacks_nothing(tmp_path):
    restores = 15 * FACTOR
    report = in_a_process_without_threads(crashes.restores, tmp_path, restores, 5)
    assert (report["below"], report["newest refused"], report["problems"]) == (0, 0, [])
    assert restores == report["refused"] + report["nothing was lost"]
    assert report["refused"] > restores * 0.6


def test_making_that_was_killed_can_be_ended(tmp_path):
    assert in_a_process_without_threads(crashes.births, tmp_path, 15 * FACTOR, 6) == {"unusable": 0}
