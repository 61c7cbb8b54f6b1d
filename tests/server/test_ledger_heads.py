"""The server keeps the heads of the sites' ledgers across runs: one put back is refused."""

import shutil

import pytest

from fl_dpbayes.files.atomic_file import write_sealed_json
from server.federation import run_federation
from server.ledger_heads import HEADS_FILE, MOST_SITES, LedgerHeads, read_heads
from tests.asking import refused
from tests.server.conftest import name_nodes


def keep_heads(path, heads) -> None:
    known = LedgerHeads(path)
    known.last |= heads
    known.keep()


@pytest.fixture
def hospitals(federation):
    """Real sites, whose ledgers no run makes."""
    prepared = federation("simulation.cohort_epsilon=20", name="hospitals")
    name_nodes(prepared)

    def run(name: str) -> None:
        folder = prepared.folder.parent / "runs" / name
        folder.mkdir(parents=True)
        run_federation(
            prepared.grid, prepared.scenario.model_copy(update={"seed": len(name)}), folder, ""
        )

    prepared.run_anew = run
    prepared.heads = prepared.folder.parent / "runs" / HEADS_FILE
    return prepared


def trained(hospitals) -> list[str | None]:
    """Return the heads that the last run's first requests echoed, and forget the requests."""
    records = hospitals.asked("train")
    hospitals.grid.requests.clear()
    return [record["ledger_head"] for record in records if record["round"] == 1]


@pytest.mark.slow
def test_next_run_echoes_the_heads_of_the_last_and_refuses_ledgers_put_back(hospitals) -> None:
    shutil.copytree(hospitals.folder / "ledgers", hospitals.folder / "copy/ledgers")
    shutil.copytree(hospitals.folder / "witnesses", hospitals.folder / "copy/witnesses")
    hospitals.run_anew("a")
    assert trained(hospitals) == [None] * 4
    after_one = read_heads(hospitals.heads)
    assert len(after_one) == 4
    hospitals.run_anew("bb")
    assert trained(hospitals) == list(after_one.values())
    # An administrator puts both of a site's places back; the server's head is left as it was.
    for folder in ("ledgers", "witnesses"):
        shutil.rmtree(hospitals.folder / folder)
        (hospitals.folder / "copy" / folder).rename(hospitals.folder / folder)
    refused(r"north.*LEDGER_ROLLED_BACK ledger_head", hospitals.run_anew, "ccc")


def test_heads_of_other_sites_stay_and_the_oldest_go(tmp_path) -> None:
    path = tmp_path / HEADS_FILE
    assert read_heads(path) == read_heads(None) == {}
    keep_heads(None, {"north": "0" * 64})
    keep_heads(path, {f"site-{number}": "0" * 64 for number in range(MOST_SITES)})
    keep_heads(path, {"site-1": "1" * 64, "north": "2" * 64})
    kept = read_heads(path)
    assert (len(kept), kept["north"], kept["site-1"], "site-0" in kept) == (
        MOST_SITES,
        "2" * 64,
        "1" * 64,
        False,
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        {"format": 1, "heads": {"north": "00"}},
        {"format": 1, "heads": {"no rth": "0" * 64}},
        {"format": 1, "heads": {}, "more": 1},
        "changed",
    ],
    ids=["empty", "list", "short head", "bad name", "unknown key", "changed"],
)
def test_damaged_file_is_named_with_the_remedy(tmp_path, content) -> None:
    path = tmp_path / HEADS_FILE
    if isinstance(content, dict):
        write_sealed_json(path, content)
    elif content == "changed":
        keep_heads(path, {"north": "0" * 64})
        path.write_text(path.read_text().replace("0" * 64, "0" * 63 + "1"))
    else:
        path.write_text(content)
    refused(r"ledger-heads.json.*put back its last copy", read_heads, path)


def test_heads_behind_a_link_are_read_and_told_or_refused(tmp_path) -> None:
    path, elsewhere = tmp_path / HEADS_FILE, tmp_path / "another disk" / "heads.json"
    path.symlink_to(elsewhere)
    refused("put back its last copy", read_heads, path)
    elsewhere.parent.mkdir()
    keep_heads(elsewhere, {"north": "a" * 64})
    keep_heads(path, {"north": "b" * 64})
    assert path.is_symlink()
    assert read_heads(elsewhere) == {"north": "b" * 64}
