"""The bank of released samples: what a round costs it does not grow with the rounds before."""

import json
import os
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fl_dpbayes.files import atomic_file
from fl_dpbayes.files.array_file import read_arrays, write_arrays
from fl_dpbayes.posterior.sample_file import open_samples
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


def run(bank: PosteriorBank, rounds: range, sites: int) -> list[dict]:
    entries = []
    for number in rounds:
        for site in range(sites):
            add(bank, f"site-{site}", number, (number - 1) // 3)
        entries += bank.new_entries()
        bank.drop_replaced()
    return entries


def test_a_bank_that_is_gone_on_with_holds_what_one_that_never_stopped_holds(tmp_path) -> None:
    whole = PosteriorBank(tmp_path / "a" / "bank")
    first = PosteriorBank(tmp_path / "b" / "bank")
    run(whole, range(1, 7), 2)
    entries = run(first, range(1, 5), 2)
    add(first, "site-0", 5)  # a round that is cut off
    again = PosteriorBank(tmp_path / "b" / "bank")
    again.check(entries, 4)
    run(again, range(5, 7), 2)
    listed = [
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*.safetensors"))
        for folder in (tmp_path / "a", tmp_path / "b")
    ]
    assert listed[0] == listed[1]
    assert sum("last-" in name for name in listed[0]) == 4, (
        "of each site and chain the newest state alone"
    )
    for bank in (whole, again):
        assert [float(bank.last("site-1", chain)["parameters/w"][0]) for chain in (0, 1)] == [3, 6]
        assert bank.stored("site-1").in_memory().arrays["w"][:, 0].tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("sites", [3, 40])
def test_a_round_lists_nothing_and_waits_for_the_disk_a_bounded_number_of_times(
    tmp_path, monkeypatch, sites
) -> None:
    bank = PosteriorBank(tmp_path / "bank")
    done = Counter[str]()
    run(bank, range(1, 3), sites)
    watched = [(os, name) for name in ("fsync", "scandir", "listdir")]
    for place, name in [*watched, (atomic_file, "_sync_file_system")]:
        plain = getattr(place, name)
        monkeypatch.setattr(
            place, name, lambda *a, name=name, plain=plain: done.update([name]) or plain(*a)
        )
    monkeypatch.setattr(Path, "glob", lambda *a: done.update(["glob"]) or iter(()))
    run(bank, range(3, 4), sites)
    assert done == ({"fsync": 3 * sites} if sites == 3 else {"_sync_file_system": 1})
    monkeypatch.setattr(
        atomic_file, "_sync_file_system", lambda _: (_ for _ in ()).throw(OSError(5, "broken"))
    )
    if sites == 40:
        refused("cannot be written", run, bank, range(4, 5), sites)


@pytest.mark.parametrize("value", [1e300, -3.5e38, np.inf, np.nan])
@pytest.mark.parametrize("changed", ["parameters/w", "samples/w", "weights", "temperatures"])
def test_a_value_beyond_float32_is_refused_when_it_is_read_and_its_file_named(
    tmp_path, value, changed
) -> None:
    bank = PosteriorBank(tmp_path)
    add(bank, "site-0", 1)
    (path,) = tmp_path.rglob("last-*" if changed == "parameters/w" else "chain-*")
    _, arrays = read_arrays(path)
    arrays[changed] = np.full(arrays[changed].shape, value, np.float64)
    write_arrays(path, arrays)

    def read() -> None:
        again = PosteriorBank(tmp_path)
        again.last("site-0", 0)
        again.stored_last_states("site-0").in_memory()
        again.stored("site-0").in_memory()

    refused(
        rf"{path.name} cannot be read .*{changed}.* beyond float32's range.*put back a copy", read
    )


def test_a_file_of_the_bank_that_holds_whole_numbers_or_is_cut_off_is_refused(tmp_path) -> None:
    bank = PosteriorBank(tmp_path)
    add(bank, "site-0", 1)
    (path,) = tmp_path.rglob("last-*")
    save_file({"parameters/w": np.ones(2, np.int64)}, path)
    refused("I64: it must be float32 or float64", bank.last, "site-0", 0)
    path.write_bytes(path.read_bytes()[:20])
    refused(f"{path.name} cannot be read", bank.last, "site-0", 0)


def as_stored_type(path: Path, name: str, stored: str) -> None:
    """Say in a file's header that an array is of another type of the same file format."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    begin, end = header[name]["data_offsets"]
    header[name] |= {
        "dtype": stored,
        "shape": [(end - begin) // {"BF16": 2, "F8_E4M3": 1, "I64": 8}[stored]],
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])


@pytest.mark.parametrize("stored", ["BF16", "F8_E4M3", "I64"])
@pytest.mark.parametrize("name", ["parameters/w", "samples/w", "weights"])
def test_a_type_that_numpy_has_not_is_refused_when_the_file_is_opened(
    tmp_path, name, stored
) -> None:
    bank = PosteriorBank(tmp_path)
    add(bank, "site-0", 1)
    (path,) = tmp_path.rglob("last-*" if name == "parameters/w" else "chain-*")
    as_stored_type(path, name, stored)
    again = PosteriorBank(tmp_path)
    read = partial(again.last, chain=0) if name == "parameters/w" else again.stored
    refused(
        f"{path.name} cannot be read .*{name}' is {stored}: it must be float32 or float64",
        read,
        "site-0",
    )


@pytest.mark.parametrize("weights", [np.zeros((2, 2)), np.array(1.0), -np.ones(2), np.ones(3)])
def test_weights_that_are_none_are_refused_when_the_file_is_opened(tmp_path, weights) -> None:
    path = tmp_path / "chain.safetensors"
    samples = np.zeros((2, 3), np.float32)
    write_arrays(path, {"weights": weights, "temperatures": np.zeros(2), "samples/w": samples})
    refused("cannot be read .*(one number for each sample|below 0)", open_samples, path)
