"""Every kind of warning has its sentence, and the same warning of several sites is one line."""

import re
from pathlib import Path

import fl_dpbayes
from fl_dpbayes.config.run_warning import RunWarning, warning
from fl_dpbayes.report.warnings import SENTENCES, sentence, sentences

ROOT = Path(fl_dpbayes.__file__).parents[1]


def test_every_kind_that_is_made_has_a_sentence_and_none_is_left_over() -> None:
    paths = [
        path for name in ("fl_dpbayes", "clients", "server") for path in (ROOT / name).rglob("*.py")
    ]
    code = "".join(
        path.read_text() for path in paths if path.parts[-2:] != ("report", "warnings.py")
    )
    made = set(re.findall(r'(?<![\w.])warning\(\s*"([\w-]+)"', code))
    assert made <= set(SENTENCES)
    # A kind may be handed on before the warning is made.
    assert {kind for kind in SENTENCES if f'"{kind}"' not in code} == set()


def test_a_warning_comes_back_from_json_and_is_worded_in_one_place() -> None:
    values = {
        "sites": 3,
        "role": "train",
        "metric": "ECE",
        "value": 0.1,
        "low": 0.05,
        "high": 0.2,
        "without": 0.5,
    }
    found, start = (
        warning("decisive", "north", **values),
        "north decides what is pooled over the 3 training sites: ",
    )
    assert RunWarning.model_validate_json(found.model_dump_json()) == found
    assert sentence(found).startswith(f"{start}their ECE is 0.100 [0.050,")
    assert "nan of inf" in sentence(
        warning("dominating", "a", held=float("nan"), all=float("inf"), share=0.5, role="")
    )
    assert "only 1 site took part" in sentence(
        warning("share-not-kept", sites=1, weight=1.0, share=0.5)
    )


def test_equal_warnings_list_their_sites() -> None:
    values = {"round": 1, "status": "FAILED", "detail": "no reply"}
    north, south = (warning("not-usable", site, **values) for site in ("north", "south"))
    said = sentences([north, warning("not-moved"), south, warning("not-moved"), north])
    assert said[0] == "round 1: north: FAILED no reply (the same at south)."
    assert said[1:] == [sentence(warning("not-moved"))]


def test_numbers_of_a_site_do_not_keep_warnings_apart_and_are_not_passed_on() -> None:
    sizes = {"a": 3.1, "b": 3.2, "c": 7}
    found = [
        warning("few-effective", site, effective=size, least=5) for site, size in sizes.items()
    ]
    assert sentences(found) == [
        "site 'a' has only 3.1 effective samples of the 5 that its precision needs: its "
        "weight is uncertain, and is "
        "that of the least number (and likewise at b, c)."
    ]


def test_other_rounds_other_words_and_warnings_of_no_site_stay_apart() -> None:
    found = [
        *(warning("joined", site, round=number) for number, site in enumerate(("north", "south"))),
        *(
            warning("not-recalibrated", *who, reason=why)
            for *who, why in (("north", "late"), ("south", "refused"))
        ),
        *(warning("precision-floored", raised=number, parameters=9) for number in (1, 2)),
    ]
    assert sentences(found) == list(map(sentence, found))
