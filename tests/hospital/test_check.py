"""`fl-dpbayes site check`: each kind of broken data has a sentence with the row, never the value."""

import re
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from fl_dpbayes.config.site_file import read_site_file
from fl_dpbayes.models import rows as row_check

CANARY = "4711"
Change = Callable[[list[str]], list[str]]


def cell(line: int, column: int, value: str) -> Change:
    """Change one cell of the line of this number, the first line being 1."""

    def change(lines: list[str]) -> list[str]:
        cells = lines[line - 1].split(",")
        cells[column] = value
        return [*lines[: line - 1], ",".join(cells), *lines[line:]]

    return change


def exchanged(lines: list[str]) -> list[str]:
    rows = [line.split(",") for line in lines]
    return [lines[0], *(",".join([row[0], row[2], row[1], *row[3:]]) for row in rows[1:])]


BROKEN: dict[str, tuple[Change, str]] = {
    "text": (cell(7, 1, f"about {CANARY}"), r"column 'age': line 7: text where a number is due"),
    "comma": (cell(7, 1, f'"{CANARY},5"'), r"column 'age': line 7: a number with a decimal comma"),
    "huge": (cell(7, 1, "1e308"), r"a feature is not a finite number"),
    "infinite": (cell(7, 1, "inf"), r"column 'age': line 7: an infinite number"),
    "gap": (cell(7, 1, ""), r"column 'age': line 7: no value"),
    "category": (
        cell(9, 3, CANARY),
        r"column 'smoker': line 9: a value that source.categories does not name",
    ),
    "label": (
        cell(9, 4, CANARY),
        r"column 'outcome': line 9: a value that source.class_names does not name",
    ),
    "no patient": (cell(401, 0, ""), r"column 'patient': line 401: no name"),
    "more cells": (cell(5, 4, f"dead,{CANARY}"), r"line 5 has 6 cells, and those before 5"),
    "no header": (
        lambda lines: [f"{CANARY},1,2,now,dead", *lines[1:]],
        r"the first line does not name 'age'",
    ),
    "renamed": (cell(1, 2, "mmHg"), r"the first line does not name 'pressure'"),
    "column twice": (
        cell(1, 0, "age"),
        r"columns 1 and 2 of the first line have the same name",
    ),
    "exchanged": (exchanged, r"'age' and 'pressure' look exchanged"),
    "doubled": (
        lambda lines: [*lines, *lines[1:]],
        r"the rows from line 402 on repeat those before",
    ),
    "one class": (
        lambda lines: [line.replace("dead", "alive") for line in lines],
        r"every row has the same label",
    ),
    "two names": (
        cell(3, 0, "P 000"),
        r"column 'patient': line 2 and 1 more: names that differ only by blanks",
    ),
    "binary": (lambda lines: ["a\0b", *lines], r"is no text"),
    "empty": (lambda lines: [], r"is empty"),
    "no rows": (lambda lines: lines[:1], r"has no rows"),
    "half": (lambda lines: lines[:201], r"units is declared as 160, but the site holds"),
    "no file": (None, r"cannot be read \(No such file"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_data_are_told_by_row_and_never_by_value(made, command, kind: str) -> None:
    change, said = BROKEN[kind]
    table, snapshot = made.parent / "patients.csv", made.parent / "ledger" / "north.records.npz"
    before, lines = snapshot.read_bytes(), table.read_text().splitlines()
    table.unlink()
    if change is not None:
        table.write_text("".join(f"{line}\n" for line in change(lines)))
    status, shown, error = command("site", "check", made, "--only", "data")
    assert (status, error) == (1, ""), shown
    assert re.search(f"FAIL  .*{said}", shown), shown
    assert CANARY not in shown
    assert snapshot.read_bytes() == before


def test_patients_in_two_parts_are_found(made, command) -> None:
    table = made.parent / "patients.csv"
    text = table.read_text()
    for number in range(40):
        text = text.replace(f"p{number:03d}", f"P{number:03d}", 1)
    table.write_text(text)
    _, shown, _ = command("site", "check", made, "--only", "data")
    assert re.search(
        r"79 more: names that differ .*; [1-9]\d* such patients stand in two parts", shown
    ), shown


def test_sound_data_pass_and_say_what_a_request_takes(made, command, monkeypatch) -> None:
    status, shown, error = command("site", "check", made, "--only", "data")
    assert (status, error) == (0, "")
    looked_at = ("data", "patients", "memory", "snapshot", "arithmetic", "ledger")
    assert re.findall(r"^(\w+)  (\w+):", shown, re.M) == [("PASS", name) for name in looked_at]
    monkeypatch.setattr("fl_dpbayes.hospital.check._free_mebibytes", lambda: 100)
    assert re.search(
        r"FAIL  memory: .* 100 MiB are free", command("site", "check", made, "--only", "data")[1]
    )
    assert command("site", "ledger", "close", made, "--yes")[0] == 0
    text = re.sub("\ndelta = .*", "\ndelta = 0.5", made.read_text())
    made.write_text(re.sub("\nexpires = 20..", "\nexpires = 2020", text))
    shown = command("site", "check", made, "--only", "data")[1]
    for said in (
        r"delta is 0\.5.*\n.*no snapshot was",
        "WARN  cohort: it is closed",
        "WARN  policy: .*POLICY_EXPIRED",
    ):
        assert re.search(said, shown), shown


def test_gap_with_a_constant_and_a_row_again_are_no_failure(made, command) -> None:
    table = made.parent / "patients.csv"
    lines = cell(7, 2, "")(table.read_text().splitlines())
    table.write_text("\n".join([*lines, lines[-1]]) + "\n")
    status, shown, _ = command("site", "check", made, "--only", "data")
    assert (status, "WARN  rows: line 402: equal to an earlier row" in shown) == (0, True), shown


def test_images_are_told_by_number_and_never_by_name(made, command) -> None:
    folder = made.parent / "images"
    for number in range(8):
        path = folder / ["yes", "no"][number % 2] / f"P{CANARY if number == 5 else number}_1.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4), number, np.uint8)).save(path)
    (folder / "no" / f"P{CANARY}_1.png").write_bytes(b"no picture")
    (folder / "no" / f"{CANARY}.png").write_bytes(b"")
    source = {
        "kind": "images",
        "path": str(folder),
        "height": 4,
        "width": 4,
        "patient_pattern": "^P([0-9]+)_",
    }
    text = made.read_text().split("[source]")[0] + "[source]\n"
    text += "".join(f"{key} = {value!r}\n" for key, value in source.items())
    made.write_text(text + "[split]" + made.read_text().split("[split]")[1])
    assert read_site_file(made).source.kind == "images"
    status, shown, _ = command("site", "check", made, "--only", "data")
    assert status == 1
    assert re.search(
        r"FAIL  images: image 1 of 9 in alphabetical order: its path names no patient", shown
    ), shown
    assert re.search(
        r"FAIL  images: image \d of 9 in alphabetical order: it cannot be read", shown
    ), shown
    assert CANARY not in shown


def test_first_line_that_is_a_patient_is_not_quoted(made, command) -> None:
    (made.parent / "more.csv").write_text(f"{CANARY},1,2,now,dead\n{CANARY},1,2,now,dead\n")
    made.write_text(
        made.read_text().replace('path = "patients.csv"', 'path = ["patients.csv", "more.csv"]')
    )
    status, shown, _ = command("site", "check", made, "--only", "data")
    assert (status, CANARY in shown, "FAIL  data: it cannot be read" in shown) == (
        1,
        False,
        True,
    ), shown


def test_a_machine_that_goes_record_by_record_is_told_with_its_cost(
    made, command, monkeypatch
) -> None:
    monkeypatch.setattr(row_check, "_known", {})
    monkeypatch.setattr(row_check, "_stands_alone", lambda shape, _: shape.rows == 1)
    monkeypatch.setattr(
        row_check, "_seconds_of_row", lambda shape, _: 12.0 if shape.rows == 1 else 1.0
    )
    status, shown, _ = command("site", "check", made, "--only", "data")
    assert re.search(
        r"WARN  arithmetic: records are computed one at a time here.* about 12 times as long", shown
    )
    assert status == 0
    monkeypatch.setattr(row_check, "_known", {})
    monkeypatch.setattr(row_check, "_stands_alone", lambda *_: False)
    status, shown, _ = command("site", "check", made, "--only", "data")
    assert re.search(r"FAIL  arithmetic: this model gives one record different results", shown)
    assert status == 1
