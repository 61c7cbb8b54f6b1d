"""One site sends the worst of replies all run long: the run ends well, small, and clean wherever it is shown."""

import io
import json
import unicodedata
from collections.abc import Callable

import pytest
from flwr.app import Array, Error, Message
from rich.console import Console

from fl_dpbayes.protocol.arrays import MAGIC
from fl_dpbayes.report.page import write_report
from fl_dpbayes.run.progress import Display
from fl_dpbayes.run.simulate import show_run

# Every test here is a whole run or several.
pytestmark = pytest.mark.slow

TERMINAL = "\x1b]0;mine\x07\x1b[2J\x9b31m\u202egnp\u2066[/] $x$ <script>\r\n"
WEIGHT = "last/parameters/1.weight"


def array(**changes) -> Callable[[Message], None]:
    def spoil(reply: Message) -> None:
        name = WEIGHT if WEIGHT in reply.content["arrays"] else min(reply.content["arrays"])
        one = reply.content["arrays"][name]
        parts = {"dtype": one.dtype, "shape": one.shape, "stype": one.stype, "data": one.data}
        reply.content["arrays"][name] = Array(**(parts | changes))

    return spoil


def record(text: Callable[[str], object]) -> Callable[[Message], None]:
    def spoil(reply: Message) -> None:
        reply.content["config"]["record"] = text(reply.content["config"]["record"])

    return spoil


def refusal(field: str) -> Callable[[Message], None]:
    def spoil(reply: Message) -> None:
        reply.content["config"]["refusal"] = json.dumps({"code": "BAD_REQUEST", "field": field})

    return spoil


def error(reply: Message) -> None:
    reply.__dict__["_content"], reply.__dict__["_error"] = None, Error(2, TERMINAL * 1000)


def declared(length: int) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({length},), }}".ljust(117) + "\n"
    return MAGIC + len(header).to_bytes(2, "little") + header.encode() + b"\0" * 64


def with_keys(count: int) -> Callable[[str], str]:
    return lambda text: text[:-1] + "".join(f',"key {number}":1' for number in range(count)) + "}"


def with_history(rows: int) -> Callable[[str], str]:
    return lambda text: text.replace('"history":[', '"history":[' + "[1.5,1.0,1]," * rows)


ARRAY_FAULTS = {
    "stored as a pickle": array(stype="pickle"),
    "without data": array(data=b""),
    "10^12 entries": array(data=declared(10**12)),
    "a pickle": array(data=b"\x80\x04."),
    "type": array(dtype=TERMINAL * 1000),
    "10^400 entries": array(shape=(10**400,)),
}
RECORD_FAULTS = {
    "key of 15 MB": record(lambda text: text[:-1] + f',"{"x" * 15_000_000}":1}}'),
    "key of 3 MB": record(lambda text: text[:-1] + f',"{"x" * 3_000_000}":1}}'),
    "key with escapes": record(lambda text: text[:-1] + "," + json.dumps(TERMINAL) + ":1}"),
    "400,000 keys": record(with_keys(400_000)),
    "900 keys": record(with_keys(900)),
    "history of 600,000 rows": record(with_history(600_000)),
    "refusal with escapes": refusal(TERMINAL),
    "refusal with markup": refusal("[/red]"),
    "half a pair": record(lambda text: text[:-1] + ',"\\ud800":1}'),
    "nested": record(lambda text: '{"run":' * 5000 + "1" + "}" * 5000),
    "not text": record(lambda text: [text]),
    "error with escapes": error,
}
FAULTS = ARRAY_FAULTS | RECORD_FAULTS


def is_clean(text: str) -> bool:
    return all(
        letter in "\n\t" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for letter in text
    )


def run_with(federation, faults, name: str):
    """Let the site south answer each round with another of these faults."""
    run = federation(
        f"training={{rounds={len(FAULTS)}, steps_per_round=2, burn_in=0, thinning=2}}",
        "aggregation.rule=fald", "recalibration={fraction=0.2, steps=2}", name=name,
    )  # fmt: skip

    def change(request: Message, reply: Message) -> Message:
        if run.site_of(request) != "south" or request.metadata.message_type == "query":
            return reply
        stages = {"train": int(request.metadata.group_id) - 1, "train.recalibrate": 7, "evaluate": 1}
        faults[stages[request.metadata.message_type]](reply)
        return reply

    run.grid.change = change
    run.run()
    return run


def test_worst_replies_end_no_run_fill_no_disk_and_write_nothing_to_a_terminal(federation, monkeypatch) -> None:
    without = run_with(federation, [refusal("")] * len(FAULTS), "without")
    monkeypatch.setattr("server.federation.write_report", write_report)
    run = run_with(federation, list(FAULTS.values()), "hostile")
    posterior, expected = ((one.folder / "posterior.safetensors").read_bytes() for one in (run, without))
    assert posterior == expected
    rows = run.rows("privacy.csv", site="south", purpose="training")
    assert len(rows) == len(FAULTS)
    for row, fault in zip(rows, FAULTS, strict=True):
        assert row["status"] in ("REJECTED", "REFUSED", "FAILED"), fault
        assert row["reason"], fault
        assert len(row["reason"]) <= 80, fault
        assert row["reason"].isprintable(), fault
    assert (run.folder / "checkpoint.safetensors").stat().st_size < 2**17
    for name in ("events.jsonl", "privacy.csv", "rounds.csv", "summary.json", "report.html"):
        assert is_clean((run.folder / name).read_text(encoding="utf-8")), name
    assert is_clean(shown_of(run))
    summary = run.summary()
    assert all(is_clean(text) and len(text) < 300 for text in summary["warnings"])
    assert any("south did not recalibrate: rejected: xxx" in text for text in summary["warnings"])
    assert any("south sent no evaluation: rejected: array" in text for text in summary["warnings"])


def shown_of(run) -> str:
    """Return what the live display and the tables at the end show, in a terminal without colours."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=200)
    display = Display(console, len(FAULTS))
    for line in (run.folder / "events.jsonl").read_text().splitlines():
        display.show(json.loads(line))
        console.print(display.render())
    show_run(run.folder, console)
    return console.file.getvalue()


def test_reply_that_flower_cannot_put_together_is_one_site_s_failure(federation) -> None:
    run = federation()
    pull = type(run.grid).pull_messages
    faults = iter(
        [KeyError("x"), ValueError(TERMINAL), TypeError("x"), IndexError("x"), MemoryError(), RecursionError()]
    )

    def pull_or_fail(message_ids):
        replies = pull(run.grid, message_ids)
        if replies and replies[0].metadata.src_node_id == 2 and replies[0].metadata.message_type != "query":
            raise next(faults)
        return replies

    run.grid.pull_messages = pull_or_fail
    run.run()
    summary = run.summary()
    assert run.statuses() == {"north": ["OK"] * 2, "south": ["FAILED"] * 2, "east": ["OK"] * 2, "west": ["OK"] * 2}
    assert any("south sent no evaluation: rejected: error code" in text for text in summary["warnings"])


def test_what_a_broken_connection_raises_still_ends_the_run(federation) -> None:
    run = federation()

    def pull(message_ids):
        raise ConnectionError("gone")

    run.grid.pull_messages = pull
    with pytest.raises(ConnectionError):
        run.run()


def test_card_with_escapes_is_shown_clean(federation, monkeypatch) -> None:
    run = federation()

    changes = {"south": {"unit": TERMINAL, "shift": TERMINAL}, "east": {TERMINAL: 1}}
    run.spoil_record(lambda card: card.update(changes[card["name"]]), ("query",), changes)
    monkeypatch.setattr("server.federation.write_report", write_report)
    run.run()
    for name in ("events.jsonl", "summary.json", "report.html"):
        assert is_clean((run.folder / name).read_text(encoding="utf-8")), name
    summary = run.summary()
    assert {row["name"] for row in summary["sites"]} == set(run.scenario.sites) - {"east"}
    assert is_clean(json.dumps(summary, ensure_ascii=False))
    assert is_clean(shown_of(run))
