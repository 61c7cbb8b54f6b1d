"""Which words of a column keep their names, and which share one."""

import pandas
import pytest

from fl_dpbayes.commands.column_features import (
    ProposedFeatures,
    as_numbers,
    group_rare_values,
    proposed_features,
)

ROWS = 1000


def column(counts: dict[str | None, int]) -> pandas.Series:
    """Return words with these counts, filled up by words that stand in one row each."""
    words = [word for word, count in counts.items() for _ in range(count)]
    return pandas.Series([*words, *(f"word {number}" for number in range(ROWS - len(words)))])


@pytest.mark.parametrize(
    ("counts", "named", "others"),
    [
        ({"b": 20, "a": 500}, ["a", "b"], "other"),
        # Below one row in fifty a word has no name of its own.
        ({"b": 20, "a": 500, "c": 19}, ["a", "b"], "other"),
        ({"b": 19, "a": 500}, None, None),
        ({"b": 20, "a": 500, "other": 100}, ["a", "b"], "other"),
        ({"b": 20, "a": 500, None: 1}, ["a", "b", "missing"], "other"),
        (dict.fromkeys("lkjihgfedcba", 50), list("defghijkl"), "other"),
        (dict.fromkeys("lkjihgfedcba", 50) | {None: 9}, [*"efghijkl", "missing"], "other"),
    ],
)
def test_frequent_words_keep_their_names(counts, named, others) -> None:
    words = pandas.DataFrame({"x": column(counts)})
    features = proposed_features(words.assign(y=["f", "m"] * (ROWS // 2)))
    assert features.unusable["x"].kind == "many words"
    group_rare_values(features, words)
    assert features.categories.get("x") == named
    assert features.others.get("x") == others
    assert ("x" in features.unusable) == (named is None)


def test_text_of_numbers_alone_becomes_numbers() -> None:
    table = pandas.DataFrame(
        {
            "point": ["66.5", None, "7"],
            "comma": ["66,5", None, "7"],
            "word": ["a", None, "7"],
            "empty": [None, None, None],
        }
    )
    changed = as_numbers(table)
    assert changed["point"].tolist()[::2] == [66.5, 7.0]
    assert pandas.isna(changed["point"][1])
    assert changed.drop(columns="point").equals(table.drop(columns="point"))


def test_number_of_inputs() -> None:
    features = ProposedFeatures(
        numbers={"age": (60, 10), "lactate": (2, 1)},
        categories={"ward": ["east", "west"]},
        missing={"lactate": 2},
        others={"ward": "other"},
    )
    assert features.inputs == 2 + 1 + 3
