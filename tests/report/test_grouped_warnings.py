"""The same warning of several sites is one line."""

from fl_dpbayes.report.grouped_warnings import folded

SITES = ["north", "south", "south-east"]


def test_equal_sentences_list_their_sites() -> None:
    texts = ["round 1: north: FAILED no reply", "other", "round 1: south: FAILED no reply"]
    assert folded(texts, SITES) == ["round 1: north: FAILED no reply (the same at south).", "other"]


def test_numbers_of_a_site_do_not_keep_sentences_apart_and_are_not_passed_on() -> None:
    texts = [
        f"site '{site}' has only {size} effective samples." for site, size in zip(SITES, (3.1, 3.2, 7.0), strict=True)
    ]
    assert folded(texts, SITES) == ["site 'north' has only 3.1 effective samples (and likewise at south, south-east)."]


def test_other_rounds_and_single_sentences_stay() -> None:
    texts = ["round 1: north: FAILED", "round 2: south: FAILED", "north and south differ", "none", "none"]
    assert folded(texts, SITES) == texts[:4]
