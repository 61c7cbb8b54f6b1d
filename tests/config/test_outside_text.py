"""Text from outside: whatever came, what is kept of it is short and printable."""

import json
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_dpbayes.config.names import outside_text
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.refusal import Refusal
from fl_dpbayes.protocol.train import TrainReply
from fl_dpbayes.protocol.wire import read_header

# Title of the terminal, colour, cursor, a link, bell, new line, reversed writing, no width, half of
# a pair.
HOSTILE = "\x1b]0;mine\x07\x1b[2J\x1b[31m\x9b5A\r\n\u202egnp\u2066\u200b\ufeff\ud800\u2028\x00"


@given(st.text(st.characters(), max_size=200))
def test_text_from_outside_is_printable_short_and_stays_as_it_is(text: str) -> None:
    shown = outside_text(text)
    assert shown.isprintable()
    assert len(shown) <= 80
    assert outside_text(shown) == shown
    if text.isprintable() and len(text) <= 80:
        assert shown == text


def test_no_control_character_or_mark_of_direction_is_left() -> None:
    assert outside_text(HOSTILE) == "?]0;mine??[2J?[31m?5A???gnp??????"
    assert outside_text("x" * 81) == "x" * 79 + "…"


def test_refusal_card_and_unknown_key_carry_no_control_character() -> None:
    text = HOSTILE.replace("\ud800", "")
    with pytest.raises(ValueError, match="unicode"):
        read_header(Refusal, json.dumps({"code": "BAD_REQUEST", "field": HOSTILE}))
    field = read_header(Refusal, json.dumps({"code": "BAD_REQUEST", "field": text})).describe()
    card = {
        "name": "a",
        "role": "train",
        "task": {"input_shape": [2], "classes": 2},
        "units": 40,
        "unit": text,
        "shift": text,
        "evaluation_release": "none",
        "seeded": False,
        "data_schema": dict.fromkeys(("features", "constants", "labels"), "0" * 64),
    }
    read = read_header(SiteCard, json.dumps(card))
    for shown in (field, read.unit, read.shift):
        assert shown.isprintable()
    with pytest.raises(ValueError, match="Extra inputs") as refused:
        read_header(Refusal, json.dumps({"code": "BAD_REQUEST", text: 1}))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) <= 80
    # Nor has a site with a name that is no name a card.
    for name in ("a b", "\x1b[2J", "a\n", "../a", "a" * 65, ""):
        with pytest.raises(ValueError, match="name"):
            read_header(SiteCard, json.dumps({"name": name}))


def keys(count: int) -> str:
    return json.dumps({f"key {number}": number for number in range(count)})


# Made where a test asks for one: some are tens of megabytes.
HEADERS = {
    "15 MB key": lambda: json.dumps({"x" * 15_000_000: 1}),
    "4 MB key": lambda: json.dumps({"x" * 4_000_000: 1}),
    "400,000 keys": lambda: keys(400_000),
    "all keys that fit": lambda: keys(990),
    "history of 600,000 rows": lambda: json.dumps(
        {"privacy": {"history": [[1.0, 0.1, 1]] * 600_000}}
    ),
    "history of 33,000 rows": lambda: json.dumps(
        {"privacy": {"history": [[1.5, 0.1, 1]] * 33_000}}
    ),
    "33,000 bad rows": lambda: json.dumps({"privacy": {"history": [["a", "b", "c"]] * 33_000}}),
    "99,000 bad steps": lambda: json.dumps({"sample_steps": [""] * 99_000}),
    "99,000 empty lists": lambda: json.dumps({"sample_steps": [[]] * 99_000}),
    "nested": lambda: "[" * 100_000,
    "nested tables": lambda: '{"a":' * 900 + "1" + "}" * 900,
    "long number": lambda: '{"steps": 1' + "0" * 4_000_000 + "}",
    "long fraction": lambda: '{"step_weight": 0.' + "1" * 4_000_000 + "}",
    "key twice": lambda: '{"steps": 1, "steps": 2}',
    "long text": lambda: json.dumps({"status": "x" * 4_000_000}),
    "row of two": lambda: '{"privacy": {"history": [[1.0, 0.1]]}}',
    "list": lambda: "[1]",
    "text": lambda: '"text"',
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADERS)
def test_no_header_costs_a_second_or_64_mebibytes(name: str) -> None:
    text = HEADERS[name]()
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(ValueError, match=r"\w") as refused:
        read_header(TrainReply, text)
    seconds, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < 1
    assert peak < 64 * 2**20
    assert len(str(refused.value)) < 200
    assert str(refused.value).isprintable()


COSTLIEST = """
import resource
from fl_dpbayes.protocol.train import TrainReply
from fl_dpbayes.protocol.wire import MAX_VALUES, read_header
text = '{"sample_steps": [%s], "privacy": {"history": [%s]}}' % (
    ",".join(['""'] * (MAX_VALUES // 2)), ",".join(['["",{}]'] * (MAX_VALUES // 4 - 9)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_header(TrainReply, text)
except ValueError as error:
    assert "fields are not valid" in str(error), error
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_what_python_does_not_count_stays_below_64_mebibytes_too() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", COSTLIEST], capture_output=True, text=True, check=True
    )
    assert int(ended.stdout) < 64 * 1024


REPLY = {
    "run": "ab" * 16,
    "round": 1,
    "request": "0" * 64,
    "status": "OK",
    "first_step": 0,
    "steps": 1,
    "ledger_head": "0" * 64,
    "privacy": {
        "cohort": "c",
        "unit": "patient",
        "units": 40,
        "adjacency": "add_or_remove_one",
        "delta": 1e-3,
        "epsilon": 1.0,
        "epsilon_method": "pld",
        "mu": 1.0,
        "mu_kind": "exact",
        "steps": 1,
        "budget": 8.0,
        "history": [[1.0, 1.0, 1]],
        "seeded": False,
    },
    "passes": None,
}


def test_an_honest_reply_is_read_as_it_was_and_numbers_that_json_does_not_know_are_named_by_their_field() -> (
    None
):
    assert read_header(TrainReply, json.dumps(REPLY)).model_dump(mode="json") == {
        "protocol": 1,
        **REPLY,
    }
    with pytest.raises(ValueError, match=r"^privacy\.epsilon: .*finite"):
        read_header(
            TrainReply, json.dumps(REPLY | {"privacy": REPLY["privacy"] | {"epsilon": np.inf}})
        )
