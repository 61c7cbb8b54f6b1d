"""Real replies, changed at random: whatever one site sends, the others' result stays as it is.

`FL_DPBAYES_FUZZ=5000` changes as many replies of each stage instead of a few.
"""

import itertools
import json
import os
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Error, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Every test here asks real sites first.
pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("FL_DPBAYES_FUZZ", "45"))
FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize="FL_DPBAYES_FUZZ" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
HOSTILE = "south"
MOST_SECONDS, MOST_BYTES = 1.0, 64 * 2**20


# What changes a reply. Each gets the request, the honest content and all other contents, and draws
# the rest.

WORDS = st.sampled_from(
    [
        "\x1b]0;mine\x07",
        "\x1b[2J",
        "\u202egnp",
        "\x00",
        "\ud800",
        "[/]",
        "[red]",
        "<script>",
        "../../x",
        "a" * 300,
        "",
        "\r\n",
        "=1+1",
        "é" * 90,
        "x" * 100_000,
    ]
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    WORDS,
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(
        [
            0,
            -1,
            1,
            1e308,
            -1e308,
            1e-320,
            10**400,
            float("nan"),
            float("inf"),
            [],
            {},
            [[]],
            [1, "a"],
        ]
    ),
    st.lists(st.integers(-9, 9), max_size=5),
)
LENGTHS = st.sampled_from([0, 1, 2, 3, 50, 1500, 30_000, 600_000])
NUMBERS = st.sampled_from([2, 40, 900, 20_000, 400_000])
MANY_ARRAYS = st.sampled_from([2, 500, 20_000])


def paths_of(value: Any, path: tuple = ()) -> list[tuple]:
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:3])
        if isinstance(value, list)
        else ()
    )
    return [path, *(found for key, part in inside for found in paths_of(part, (*path, key)))]


def placed(record: Any, path: tuple, change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(record)
    record[path[0]] = placed(record[path[0]], path[1:], change)
    return record


def value_at(record, path):
    for key in path:
        record = record[key]
    return record


def chosen(draw, record, *kinds: type) -> tuple:
    """Draw the path of a value of these kinds."""
    return draw(
        st.sampled_from(
            [path for path in paths_of(record) if isinstance(value_at(record, path), kinds)]
        )
    )


def record_value(draw, record):
    path, value = chosen(draw, record, object), draw(VALUES)
    return json.dumps(placed(record, path, lambda _: value))


def record_number(draw, record):
    path, factor = (
        chosen(draw, record, int, float),
        draw(st.sampled_from([-1, 0, 0.5, 1 + 1e-6, 2, 1000, 1e12, 1e300])),
    )
    return json.dumps(placed(record, path, lambda value: type(value)(value * factor)))


def keys_changed(draw, table, numbers, new):
    key = draw(st.sampled_from(sorted(table)))
    match draw(st.sampled_from(["drop", "rename", "add", "many"])):
        case "drop":
            del table[key]
        case "rename":
            table[draw(WORDS)] = table.pop(key)
        case "add":
            table[draw(WORDS)] = new(table[key])
        case "many":
            table.update({f"key {number}": new(table[key]) for number in range(draw(numbers))})
    return table


def record_keys(draw, record):
    path, value = chosen(draw, record, dict), draw(VALUES)
    return json.dumps(
        placed(record, path, lambda table: keys_changed(draw, table, NUMBERS, lambda _: value))
    )


def record_nesting(draw, record):
    path, depth = chosen(draw, record, object), draw(st.sampled_from([1, 2, 30, 300, 900, 100_000]))
    opening, closing = draw(st.sampled_from([("[", "]"), ('{"a":', "}")]))
    return json.dumps(placed(record, path, lambda _: "here")).replace(
        '"here"', opening * depth + "1" + closing * depth
    )


def record_length(draw, record):
    path, times = chosen(draw, record, list, str), draw(LENGTHS)
    return json.dumps(placed(record, path, lambda value: value * times))


def record_text(draw, record):
    text = json.dumps(record)
    place = draw(st.integers(0, len(text) - 1))
    changes = [
        text[:place],
        text[:place] + draw(WORDS) + text[place:],
        text + text,
        text.encode(),
        [text],
        1,
        0.5,
        True,
        text + " " * 5_000_000,
        "\ufeff" + text,
        text.replace('"', "'"),
        text[:-1] + ',"run":"0"}',
        "",
        "null",
    ]
    return draw(st.sampled_from(changes))


def named(*changes: Callable) -> dict[str, Callable]:
    return {change.__name__: change for change in changes}


RECORDS = named(
    record_value, record_number, record_keys, record_nesting, record_length, record_text
)


def changed_array(array: Array, **changes: Any) -> Array:
    return Array(
        **{key: getattr(array, key) for key in ("dtype", "shape", "stype", "data")} | changes
    )


def array_stype(draw, array):
    return changed_array(
        array, stype=draw(st.one_of(st.sampled_from(["pickle", "torch.Tensor", ""]), WORDS))
    )


def array_dtype(draw, array):
    dtypes = st.sampled_from(["object", "float16", "float64", ">f4", "S1000000000", "<f4,<f4"])
    return changed_array(array, dtype=draw(st.one_of(dtypes, WORDS)))


def array_shape(draw, array):
    shapes = st.sampled_from(
        [(), (0,), (-1,), (10**12,), (10**400,), (1,) * 65, (1,) * 100_000, array.shape[::-1]]
    )
    return changed_array(
        array, shape=draw(st.one_of(shapes, st.tuples(st.integers(-5, 5), st.integers(-5, 5))))
    )


HEADERS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': [('a', '<f4', (99999999,))], 'fortran_order': False, 'shape': (9,), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (10, 64), }",
    "__import__('os').abort()",
    "[" * 5000,
    "x" * 60_000,
    "",
]


def array_header(draw, array):
    start = array.data.index(b"\n") + 1
    header = draw(st.sampled_from(HEADERS))
    text = header.encode() + b"\n"
    whole = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + array.data[start:]
    flipped = bytearray(array.data)
    for place in draw(st.lists(st.integers(0, start - 1), min_size=1, max_size=3)):
        flipped[place] = draw(st.integers(0, 255))
    return changed_array(array, data=draw(st.sampled_from([whole, bytes(flipped)])))


def array_size(draw, array):
    data, place = array.data, draw(st.integers(0, len(array.data) - 1))
    changes = [
        b"",
        data[:place],
        data + data,
        data + b"\0",
        b"PK\x03\x04" + data,
        b"\x80\x04." + data,
        b"\0" * 2**22,
    ]
    return changed_array(array, data=draw(st.sampled_from(changes)))


def array_content(draw, array):
    values = array.numpy()
    factor = draw(st.sampled_from([np.nan, np.inf, -1.0, 0.0, 1 + 1e-4, 2.0, 1e3, 1e30, 1e308]))
    entry = draw(st.integers(0, max(values.size - 1, 0)))
    spoilt = values.copy()
    with np.errstate(all="ignore"):
        if draw(st.booleans()):
            spoilt = (values * factor).astype(values.dtype)
        elif values.size:
            spoilt.flat[entry] = np.asarray(factor).astype(values.dtype)
    return Array(np.ascontiguousarray(spoilt))


ARRAYS = named(array_stype, array_dtype, array_shape, array_header, array_size, array_content)
CODES = ["BAD_REQUEST", "POLICY_DENIED", "INTERNAL", "DIVERGED", "", "\x1b[2J", "A" * 10_000_000]
CONTENTS = {"content: parts", "refusal", "replay"}
MESSAGES = {"error", "another node", "duplicate", "nothing"}
KINDS = [*RECORDS, *ARRAYS, "array: names", *sorted(CONTENTS), *sorted(MESSAGES)]


def spoil(draw, kind: str, sites, stage: str, request: Message) -> list[Message]:
    """Change the hostile site's reply in one way."""
    (honest,) = sites.honest(stage)(request)
    content = honest.content
    if kind == "error":
        return [
            Message(
                Error(draw(st.sampled_from([0, 2, 7, 3, 4, -1, 2**31])), draw(WORDS)),
                reply_to=request,
            )
        ]
    if kind == "another node":
        honest.metadata.__dict__["_src_node_id"] = draw(st.sampled_from([0, 1, 99, 2**63]))
        return [honest]
    if kind == "duplicate":
        second = spoil(
            draw, draw(st.sampled_from([*RECORDS, "refusal", "error"])), sites, stage, request
        )
        return [honest, *second] if draw(st.booleans()) else [honest, *sites.honest(stage)(request)]
    if kind == "nothing":
        return []
    if kind == "replay":
        content = sites.another_reply(stage, draw)
    elif kind == "refusal":
        refusal = {"code": draw(st.sampled_from(CODES)), "field": draw(WORDS)}
        given = [
            json.dumps(refusal),
            json.dumps(refusal | {"more": 1}),
            "{}",
            "{",
            5,
            b"\xff",
            json.dumps(refusal) * 2,
        ]
        content["config"]["refusal"] = draw(st.sampled_from(given))
    elif kind == "content: parts":
        for name in draw(
            st.lists(st.sampled_from(sorted(content)), min_size=1, max_size=2, unique=True)
        ):
            del content[name]
        if draw(st.booleans()):
            content[draw(WORDS)] = ConfigRecord({"record": "x"})
    elif kind in RECORDS:
        content["config"]["record"] = RECORDS[kind](draw, json.loads(content["config"]["record"]))
    elif "arrays" in content:
        if kind == "array: names":
            content["arrays"] = keys_changed(
                draw, content["arrays"], MANY_ARRAYS, lambda array: array
            )
        else:
            name = draw(st.sampled_from(sorted(content["arrays"])))
            content["arrays"][name] = ARRAYS[kind](draw, content["arrays"][name])
    return [Message(content, reply_to=request)]


def size_of(replies: list[Message]) -> int:
    contents = [reply.content for reply in replies if not reply.has_error()]
    arrays = [
        item
        for content in contents
        for record in content.array_records.values()
        for item in record.items()
    ]
    values = [
        value
        for content in contents
        for config in content.config_records.values()
        for value in config.values()
    ]
    return sum(len(array.data) + 8 * len(array.shape) + len(name) for name, array in arrays) + sum(
        len(value) if isinstance(value, str | bytes) else 64 for value in values
    )


def check_one(data, sites, stage: str) -> None:
    kind, sent, measured = data.draw(st.sampled_from(KINDS)), [], {}

    def answer(request: Message) -> list[Message]:
        if sites.site(request) != HOSTILE:
            return sites.honest(stage)(request)
        sent[:] = spoil(data.draw, kind, sites, stage, request)
        measured["size"] = size_of(sent)
        tracemalloc.reset_peak()
        measured["before"], _ = tracemalloc.get_traced_memory()
        measured["started"] = time.process_time()
        return sent

    tracemalloc.start()
    result, said = sites.take(stage, answer)
    seconds = time.process_time() - measured["started"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seconds < MOST_SECONDS
    assert peak - measured["before"] < measured["size"] + MOST_BYTES
    reason = said.removeprefix("rejected: ")
    assert reason.isprintable()
    # Who does not join is told more, in our own words.
    assert len(reason) <= (250 if stage == "card" else 80)
    if said:
        assert result == sites.without[stage][0]
    elif result != sites.with_all[stage][0]:
        check_others(stage, result, sites.with_all[stage][0])


def check_others(stage: str, result: Any, with_all: Any) -> None:
    """The hostile site's part lies within its stage's bounds and leaves the others' as it was."""

    others = {
        "card": lambda found: [member for member in found if member.card.name != HOSTILE],
        "evaluate": lambda found: {key: part for key, part in found.items() if key[0] != HOSTILE},
        "recalibrate": lambda found: {
            site: own for site, own in found[1].items() if site != HOSTILE
        },
    }.get(stage, lambda _: None)
    assert others(result) == others(with_all)
    if stage == "recalibrate":
        assert np.isfinite(result[0].parameters).all()


@pytest.mark.parametrize(
    ("name", "scenario"),
    [
        ("card", "exact"),
        *itertools.product(["train", "recalibrate", "evaluate"], ["exact", "noised"]),
    ],
)
def test_no_changed_reply_moves_more_than_its_bounds_or_ends_a_round(
    sites, name: str, scenario: str
) -> None:
    asked = sites(scenario)

    @FUZZ
    @given(st.data())
    def fuzz(data) -> None:
        check_one(data, asked, name)

    fuzz()
