"""Which of two classes is the event: the rarer one, or the one that a person chose, never the alphabet."""

import pandas
import pytest

from fl_dpbayes.commands.event import as_keyword, event_among
from tests.asking import refused


def labels(**counts: int) -> pandas.Series:
    return pandas.Series([name for name, count in counts.items() for _ in range(count)], name="y")


NUMBERS = pandas.Series([1] * 3 + [0] * 2, name="y")


@pytest.mark.parametrize(
    ("column", "chosen", "class_names", "sentence"),
    [
        (
            labels(ja=3, nein=17),
            None,
            ["nein", "ja"],
            "event: ja, 15.0% of 20 rows (the rarer of the two; the other class:  --event nein)",
        ),
        (
            labels(died=1, lived=49),
            None,
            ["lived", "died"],
            "event: died, 2.0% of 50 rows (the rarer of the two; the other class:  --event lived)",
        ),
        (
            labels(benign=5, malignant=3),
            "benign",
            ["malignant", "benign"],
            "event: benign, 62.5% of 8 rows (as chosen; the other class:  --event malignant)",
        ),
        (
            NUMBERS,
            None,
            ["1", "0"],
            "event: 0, 40.0% of 5 rows (the rarer of the two; the other class:  --event 1)",
        ),
        (
            NUMBERS,
            "1",
            ["0", "1"],
            "event: 1, 60.0% of 5 rows (as chosen; the other class:  --event 0)",
        ),
        (
            pandas.Series([1, 0], name="y"),
            None,
            ["0", "1"],
            "event: 1, 50.0% of 2 rows (both are equally frequent; the other class:  --event 0)",
        ),
        (
            labels(**{"dead or dependent": 2, "not yet": 1}),
            "dead or dependent",
            ["not yet", "dead or dependent"],
            "event: dead or dependent, 66.7% of 3 rows (as chosen; the other class:  "
            "--event 'not yet')",
        ),
    ],
)
def test_risks_are_of_the_rarer_class_or_of_the_chosen_one(
    column, chosen, class_names, sentence
) -> None:
    event = event_among(column, chosen=chosen)
    assert event is not None
    assert event.class_names == class_names
    assert event.sentence == sentence


@pytest.mark.parametrize(
    ("column", "chosen", "said"),
    [
        (
            labels(ja=2, nein=2),
            None,
            "both classes of 'y' are equally frequent: say which is the event by  --event ja  or  --event nein",
        ),
        (
            labels(ja=2, nein=3),
            "Ja",
            "--event Ja: no class of 'y' is called so: write  --event ja  or  --event nein",
        ),
        (labels(a=1, b=2, c=3), "a", "--event a: 'y' has 3 classes, .* leave it out"),
        (labels(a=3), "a", "'y' has 1 classes"),
    ],
)
def test_what_cannot_be_the_event_is_refused(column, chosen, said) -> None:
    refused(said, event_among, column, chosen=chosen)


def test_of_three_classes_none_is_the_event() -> None:
    assert event_among(labels(a=1, b=2, c=3)) is None


def test_an_order_that_a_person_gave_stays_and_python_is_told_what_to_type() -> None:
    event = event_among(labels(ja=3, nein=17), order=["ja", "nein"], written=as_keyword)
    assert event is not None
    assert event.class_names == ["ja", "nein"]
    assert event.sentence == (
        "event: nein, 85.0% of 20 rows (the last in order; the other class:  event='ja')"
    )
