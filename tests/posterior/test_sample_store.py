"""The bank of released samples: what a round costs it does not grow with the rounds before."""

from pathlib import Path

import numpy as np
import pytest

from fl_dpbayes.files.run_store import RunStore
from fl_dpbayes.posterior.sample_store import PosteriorBank
from fl_dpbayes.posterior.samples import PosteriorSamples
from tests.asking import refused


def add(bank: PosteriorBank, site: str, round_number: int, chain: int = 0) -> None:
    sample = PosteriorSamples(
        {"w": np.full((1, 2), round_number, np.float32)}, np.ones(1), np.ones(1)
    )
    bank.add(
        site, round_number, chain, sample, {"parameters/w": np.full(2, round_number, np.float32)}
    )


def run(store: RunStore, rounds: range) -> None:
    bank = PosteriorBank(store)
    for number in rounds:
        for site in range(2):
            add(bank, f"site-{site}", number, (number - 1) // 3)
        store.append(round=number)


def test_a_bank_that_is_gone_on_with_holds_what_one_that_never_stopped_holds(
    tmp_path: Path,
) -> None:
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    with RunStore.make(tmp_path / "whole") as store:
        run(store, range(1, 7))
    with RunStore.make(tmp_path / "cut") as store:
        run(store, range(1, 5))
        add(PosteriorBank(store), "site-0", 5, 1)  # a round that is cut off
    with RunStore.open(tmp_path / "cut") as store:
        run(store, range(5, 7))
    for name in ("whole", "cut"):
        with RunStore.open(tmp_path / name, to_read=True) as store:
            bank = PosteriorBank(store)
            last = [float(bank.last("site-1", chain)["parameters/w"][0]) for chain in (0, 1)]
            assert last == [3, 6]
            assert (bank.has_last("site-1", 1), bank.has_last("site-1", 2)) == (True, False)
            assert bank.last("site-2", 0) is None
            assert bank.sample_chains("site-0").tolist() == [0, 0, 0, 1, 1, 1]
            samples = bank.stored("site-1").in_memory()
            assert samples.arrays["w"][:, 0].tolist() == [1, 2, 3, 4, 5, 6]
            points = bank.stored_last_states("site-0").in_memory()
            assert points.arrays["w"][:, 0].tolist() == [3, 6]
            assert bank.round_samples("site-0", 2, 0).arrays["w"].tolist() == [[2, 2]]
            assert bank.round_samples("site-0", 2, 1) is None


GOOD = {"weights": np.ones(2), "temperatures": np.zeros(2), "samples/w": np.zeros((2, 3), "f4")}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        *(
            ({"weights": weights}, "(one number for each sample|below 0)")
            for weights in (np.zeros((2, 2)), np.array(1.0), -np.ones(2), np.ones(3))
        ),
        ({"temperatures": np.array([0, -1.0])}, "below 0"),
        ({"weights": None}, "weights"),
        ({"samples/w": np.zeros((1, 3), "f4")}, "index 1 is out of bounds"),
        ({"samples/w": np.array(1.0)}, "too many indices"),
        ({"samples/w": np.full((2, 3), np.nan, "f4")}, "not finite"),
    ],
)
def test_samples_that_are_none_are_refused(tmp_path: Path, changes: dict, reason: str) -> None:
    arrays = {name: array for name, array in (GOOD | changes).items() if array is not None}
    with RunStore.make(tmp_path) as store:
        store.add_samples("site-0", 0, 1, arrays)
        bank = PosteriorBank(store)
        refused(
            f"run.sqlite is not as it was written .*{reason}.*put back a copy",
            lambda: bank.stored("site-0").in_memory(),
        )
