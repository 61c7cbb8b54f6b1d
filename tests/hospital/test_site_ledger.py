"""`fl-dpbayes site ledger`: what is shown, checked and exported is what the ledger holds."""

import hashlib
import io
import json
import re

import pytest
from rich.console import Console

from fl_dpbayes.config.site_file import (
    LedgerSettings,
    Policy,
    SiteFile,
    Split,
    read_site_file,
    write_site_file,
)
from fl_dpbayes.config.sources import BuiltIn, Table
from fl_dpbayes.errors import UserError
from fl_dpbayes.hospital.ledger import (
    create_ledger,
    export_ledger,
    repair_ledger,
    restrict_ledger,
    show_ledger,
    verify_ledger,
)
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.ledger.state import Cohort
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.report.numbers import rounded_up
from tests.ledgers import complete, execute, open_ledger, spending


def written(file, source, units, key="0" * 32, **ledger):
    """Write the site file of a hospital."""
    settings = LedgerSettings(**{"epsilon": 3.0, "delta": 1e-5} | ledger)
    record = SiteFile(
        name=file.stem,
        role="train",
        source=source,
        units=units,
        split=Split(key=key),
        ledger=settings,
        policy=Policy(max_run_epsilon=3.0),
    )
    write_site_file(record, file)
    return file


@pytest.fixture
def spent_site(tmp_path):
    cohort = Cohort("ward [7]", "patient", 3.0, 1e-5, "add_or_remove_one")
    with open_ledger(tmp_path / "ledger.sqlite", cohort, "full") as ledger:
        plan = (GaussianEvent(8.0, 1.0, 20),)
        complete(ledger, spending(1, run="ab" * 8, plan=plan))
        ledger.reserve(spending(2, run="ab" * 8, plan=plan))
    place = {"path": "ledger.sqlite", "witness": "witness/ledger.sqlite.json"}
    return written(tmp_path / "site.toml", BuiltIn(kind="digits"), 100, cohort=cohort.name, **place)


def told(command, *arguments, width=160):
    """What a command returns, and what it prints."""
    console = Console(file=io.StringIO(), width=width)
    return command(*arguments, console), console.file.getvalue()


def refused(words, command, *arguments):
    with pytest.raises(UserError, match=words) as error:
        told(command, *arguments)
    return str(error.value)


def test_show_names_budget_spend_and_every_reservation(spent_site):
    _, text = told(show_ledger, spent_site)
    for part in (
        "ward [7]",
        "patient",
        "1e-05",
        "abababababababab",
        "reserved",
        "done",
        "10",
        "(exact)",
    ):
        assert part in text
    planned = pld_epsilon((GaussianEvent(8.0, 1.0, 20),), 1e-5)
    assert f"its whole plan's, {rounded_up(planned)}, does" in " ".join(text.split())
    for width in (60, 80):
        _, text = told(show_ledger, spent_site, width=width)
        assert "…" not in text
        assert len(re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", text)) == 2
        assert "recalibration" in text
        assert max(map(len, text.splitlines())) <= width


def test_ledger_verifies_with_status_0_only_while_nothing_is_changed(spent_site):
    for statement, status, said in (
        ("", 0, "sound: 6 entries"),
        ("UPDATE reply SET body = x'00'", 1, "changed"),
        ("UPDATE chain SET content = replace(content, '5', '1')", 1, "changed"),
    ):
        execute(spent_site.parent / "ledger.sqlite", *([statement] if statement else []))
        found, text = told(verify_ledger, spent_site)
        assert (found, said in text) == (status, True)


def test_export_can_be_checked_without_this_project(spent_site):
    exported = json.loads(json.dumps(export_ledger(spent_site), allow_nan=False))
    kinds = [entry["content"]["kind"] for entry in exported["entries"]]
    assert kinds == ["cohort", "rule", "plan", "reserved", "done", "reserved"]
    head = "0" * 64
    for entry in exported["entries"]:
        text = json.dumps(entry["content"], sort_keys=True, separators=(",", ":"))
        head = hashlib.sha256(f"{head}\n{text}".encode()).hexdigest()
        assert entry["head"] == head
    assert (exported["head"], exported["problems"]) == (head, [])
    train, *unspent = exported["parts"]
    assert (train["steps"], train["history"], train["epsilon_method"]) == (
        10,
        [[8.0, 1.0, 10]],
        "pld",
    )
    assert [(part["steps"], part["epsilon"]) for part in unspent] == [(0, 0.0)] * 2


def test_site_without_a_ledger_is_told_so(spent_site, tmp_path, hospital):
    (tmp_path / "ledger.sqlite").unlink()
    refused(r"does not exist.*site ledger create", show_ledger, spent_site)
    refused("the ledger failed .*too long", show_ledger, hospital(path="n" * 300))
    assert told(verify_ledger, spent_site)[0] == 1
    far = read_site_file(spent_site).model_copy(update={"role": "held_out", "ledger": None})
    write_site_file(far, tmp_path / "far.toml")
    refused("names no ledger", show_ledger, tmp_path / "far.toml")


@pytest.fixture
def hospital(tmp_path):
    """Write the site file of a hospital of 150 patients, with changes."""

    def write(name="north", patients=range(150), **changes):
        folder = tmp_path / "hospital"
        folder.mkdir(exist_ok=True)
        rows = "".join(f"p{number},{number % 7},{number % 2}\n" for number in patients)
        (folder / f"{name}.csv").write_text(f"patient,x,sick\n{rows}")
        source = Table(
            path=f"{name}.csv", label="sick", classes=2, features=("x",), unit_column="patient"
        )
        place = {"path": "ledger/l.sqlite", "witness": "witness/l.json", "cohort": "2026"}
        return written(folder / f"{name}.toml", source, 120, **(place | changes))

    return write


def test_ledger_is_made_once_by_a_command(hospital):
    _, text = told(create_ledger, hospital())
    for part in ("made cohort 2026", "l.sqlite", "l.json", "epsilon 3", "unit patient"):
        assert part in text
    refused("nothing is made or overwritten", create_ledger, hospital())
    assert told(verify_ledger, hospital())[0] == 0


def test_second_cohort_of_the_same_patients_is_refused(hospital):
    told(create_ledger, hospital())
    moved = {"name": "copy", "patients": [*range(1, 150), 500]}
    for changes in ({}, {"key": "1" * 32}, moved, {"patients": range(140)}):
        renamed = hospital(cohort="2027", **changes)
        refused(r"% of these units are in cohort '2026'.*ledger.cohort", create_ledger, renamed)
        refused("no cohort '2027'", show_ledger, renamed)


def test_second_cohort_of_other_patients_is_made_and_never_a_second_ledger_with_the_same_second_place(
    hospital,
):
    told(create_ledger, hospital())
    refused("does not exist", create_ledger, hospital(path="another/l.sqlite", cohort="2027"))
    told(create_ledger, hospital(cohort="2027", patients=range(200, 350)))
    assert "Cohort 2027" in told(show_ledger, hospital(cohort="2027"))[1]


def test_repair_renews_a_lost_second_place_and_never_a_ledger_that_is_behind(hospital):
    site_file = hospital()
    told(create_ledger, site_file)
    witness, ledger = (site_file.parent / name for name in ("witness/l.json", "ledger/l.sqlite"))
    assert "nothing to repair" in told(repair_ledger, site_file)[1]
    witness.unlink()
    status, text = told(verify_ledger, site_file)
    assert (status, "does not exist: put it back" in text) == (1, True)
    assert "anew; the ledger keeps a note" in told(repair_ledger, site_file)[1]
    assert "was made anew on" in told(show_ledger, site_file)[1]
    # What is no second place is left as it lies.
    witness.write_text("patient,age\n1,70\n")
    refused(
        r"l.json of ledger .* is unreadable.*move what lies there away", repair_ledger, site_file
    )
    assert witness.read_text() == "patient,age\n1,70\n"
    ledger.write_bytes(b"")
    refused(r"is empty.*newest copy", repair_ledger, site_file)


def test_what_was_lowered_or_closed_holds_though_its_second_place_cannot_be_written(hospital):
    told(create_ledger, hospital())
    (hospital().parent / "witness" / ".l.json.partial").mkdir()
    for epsilon, said in ((2.0, "may spend epsilon 2 in"), (None, "is closed")):
        words = f"{said}.*for good: it holds, but its second place: .*json.partial"
        refused(
            words,
            lambda file, console, epsilon=epsilon: restrict_ledger(file, console, epsilon, bool),
            hospital(),
        )


def test_second_place_lies_in_another_folder_wherever_links_lead(hospital):
    (site_file := hospital()).parent.joinpath("ledger").mkdir()
    (site_file.parent / "witness").symlink_to(site_file.parent / "ledger")
    refused(r"leads to the folder of the ledger.*another folder", create_ledger, site_file)


@pytest.mark.parametrize("damage", [b"no database at all", b"damaged" * 1000, None])
def test_damaged_ledger_is_refused_in_one_line_with_path_and_remedy(hospital, damage):
    site_file = hospital()
    told(create_ledger, site_file)
    path = site_file.parent / "ledger" / "l.sqlite"
    path.write_bytes(damage or path.read_bytes()[:6000])
    words = r"not a database.*newest copy back" if damage else r"newest copy back"
    assert refused(words, show_ledger, site_file).count(str(path)) == 1
    status, text = told(verify_ledger, site_file, width=40)
    assert (status, len(text.splitlines())) == (1, 1)


def test_cohort_is_not_made_with_a_delta_that_no_request_may_have(hospital):
    for delta in (0.1, 1 / 149):
        refused(
            r"ledger.delta is .*: it must be below 0.00666667", create_ledger, hospital(delta=delta)
        )
    told(create_ledger, hospital(delta=1 / 151))
