"""`fl-dpbayes site ledger`: what is shown, checked and exported is what the ledger holds."""

import hashlib
import io
import json
import re

import pytest
from rich.console import Console

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.config.site_file import LedgerSettings, Policy, SiteFile, Split, write_site_file
from fl_dpbayes.config.sources import BuiltIn, Table
from fl_dpbayes.privacy.events import GaussianEvent
from fl_dpbayes.privacy.ledger.state import Cohort
from fl_dpbayes.privacy.pld.loss_distribution import pld_epsilon
from fl_dpbayes.report.numbers import rounded_up
from fl_dpbayes.run.site_ledger import create_ledger, export_ledger, repair_ledger, show_ledger, verify_ledger
from tests.ledgers import complete, execute, open_ledger, spending


@pytest.fixture
def site_file(tmp_path):
    settings = LedgerSettings(
        path="ledger.sqlite", witness="witness/ledger.sqlite.json", cohort="ward [7]", epsilon=3.0, delta=1e-5
    )
    record = SiteFile(
        name="north", role="train", source=BuiltIn(kind="digits"), units=100, split=Split(key="0" * 32),
        policy=Policy(max_run_epsilon=3.0), ledger=settings,
    )  # fmt: skip
    write_site_file(record, tmp_path / "site.toml")
    return tmp_path / "site.toml"


@pytest.fixture
def spent_site(site_file):
    cohort = Cohort("ward [7]", "patient", 3.0, 1e-5, "add_or_remove_one")
    with open_ledger(site_file.parent / "ledger.sqlite", cohort) as ledger:
        plan = (GaussianEvent(8.0, 1.0, 20),)
        complete(ledger, spending(1, run="ab" * 8, plan=plan))
        ledger.reserve(spending(2, run="ab" * 8, plan=plan))
    return site_file


def _console():
    return Console(file=io.StringIO(), width=160)


def test_show_names_budget_spend_and_every_reservation(spent_site):
    console = _console()
    show_ledger(spent_site, console)
    text = console.file.getvalue()
    for part in ("ward [7]", "patient", "1e-05", "abababababababab", "reserved", "done", "10", "(exact)"):
        assert part in text
    planned = pld_epsilon((GaussianEvent(8.0, 1.0, 20),), 1e-5)
    assert f"its whole plan's, {rounded_up(planned)}, does" in " ".join(text.split())


@pytest.mark.parametrize("width", [60, 80])
def test_show_keeps_times_and_words_whole_in_a_narrow_terminal(spent_site, width):
    console = Console(file=io.StringIO(), width=width)
    show_ledger(spent_site, console)
    text = console.file.getvalue()
    assert "…" not in text
    assert len(re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", text)) == 2
    assert "recalibration" in text
    assert max(map(len, text.splitlines())) <= width


def test_sound_ledger_verifies_with_status_0(spent_site):
    console = _console()
    assert verify_ledger(spent_site, console) == 0
    assert "sound: 6 entries" in console.file.getvalue()


@pytest.mark.parametrize(
    "statement", ["UPDATE chain SET content = replace(content, '5', '1')", "UPDATE reply SET body = x'00'"]
)
def test_changed_ledger_verifies_with_status_1(spent_site, statement):
    execute(spent_site.parent / "ledger.sqlite", statement)
    console = _console()
    assert verify_ledger(spent_site, console) == 1
    assert "changed" in console.file.getvalue()


def test_export_can_be_checked_without_this_project(spent_site):
    exported = json.loads(json.dumps(export_ledger(spent_site), allow_nan=False))
    head = "0" * 64
    for entry in exported["entries"]:
        text = json.dumps(entry["content"], sort_keys=True, separators=(",", ":"))
        head = hashlib.sha256(f"{head}\n{text}".encode()).hexdigest()
        assert entry["head"] == head
    assert exported["head"] == head
    assert exported["problems"] == []
    train, test, recalibration = exported["parts"]
    assert (train["steps"], train["history"], train["epsilon_method"]) == (10, [[8.0, 1.0, 5], [8.0, 1.0, 5]], "pld")
    for unspent in (test, recalibration):
        assert (unspent["steps"], unspent["epsilon"]) == (0, 0.0)


def test_site_without_a_ledger_is_told_so(site_file, tmp_path):
    with pytest.raises(UserError, match=r"does not exist.*site ledger create"):
        export_ledger(site_file)
    assert verify_ledger(site_file, _console()) == 1
    record = SiteFile(
        name="far", role="held_out", source=BuiltIn(kind="digits"), units=100, split=Split(key="0" * 32),
        policy=Policy(max_run_epsilon=3.0),
    )  # fmt: skip
    write_site_file(record, tmp_path / "far.toml")
    with pytest.raises(UserError, match="names no ledger"):
        export_ledger(tmp_path / "far.toml")


def test_ledger_given_in_place_of_its_site_file_is_told_so(spent_site):
    with pytest.raises(UserError, match=r"is a ledger: give the site file that names it"):
        show_ledger(spent_site.parent / "ledger.sqlite", _console())


def test_damaged_file_is_told_without_a_traceback(site_file):
    (site_file.parent / "ledger.sqlite").write_bytes(b"damaged" * 1000)
    with pytest.raises(UserError, match="not a database"):
        show_ledger(site_file, _console())
    assert verify_ledger(site_file, _console()) == 1


@pytest.fixture
def hospital(tmp_path):
    """Write the site file of a hospital of 150 patients, with changes."""

    def write(name="north", patients=range(150), **changes):
        folder = tmp_path / "hospital"
        folder.mkdir(exist_ok=True)
        rows = "".join(f"p{number},{number % 7},{number % 2}\n" for number in patients)
        (folder / f"{name}.csv").write_text(f"patient,x,sick\n{rows}")
        place = {"path": "ledger/l.sqlite", "witness": "witness/l.json"}
        source = Table(
            kind="table", path=f"{name}.csv", label="sick", classes=2, features=("x",), unit_column="patient"
        )
        record = SiteFile(
            name=name, role="train", units=120, split=Split(key=changes.pop("key", "0" * 32)),
            source=source, policy=Policy(max_run_epsilon=3.0),
            ledger=LedgerSettings(**place | {"cohort": "2026", "epsilon": 3.0, "delta": 1e-5} | changes),
        )  # fmt: skip
        write_site_file(record, folder / f"{name}.toml")
        return folder / f"{name}.toml"

    return write


def test_ledger_is_made_once_by_a_command(hospital):
    console = _console()
    create_ledger(hospital(), console)
    for part in ("made cohort 2026", "l.sqlite", "l.json", "epsilon 3", "unit patient"):
        assert part in console.file.getvalue()
    with pytest.raises(UserError, match="nothing is made or overwritten"):
        create_ledger(hospital(), _console())
    assert verify_ledger(hospital(), _console()) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"cohort": "2027"},
        {"cohort": "2027", "key": "1" * 32},
        {"cohort": "2027", "name": "copy", "patients": [*range(1, 150), 500]},
        {"cohort": "2027", "patients": range(140)},
    ],
    ids=["renamed cohort", "and another key", "second site file and a changed row", "fewer rows"],
)
def test_second_cohort_of_the_same_patients_is_refused(hospital, changes):
    create_ledger(hospital(), _console())
    with pytest.raises(UserError, match=r"% of these units are in cohort '2026'.*ledger.cohort"):
        create_ledger(hospital(**changes), _console())
    with pytest.raises(UserError, match="no cohort '2027'"):
        show_ledger(hospital(**changes), _console())


def test_second_cohort_of_other_patients_is_made(hospital):
    create_ledger(hospital(), _console())
    create_ledger(hospital(cohort="2027", patients=range(200, 350)), _console())
    console = _console()
    show_ledger(hospital(cohort="2027"), console)
    assert "Cohort 2027" in console.file.getvalue()


def test_second_ledger_with_the_same_second_place_is_refused(hospital):
    create_ledger(hospital(), _console())
    with pytest.raises(UserError, match="does not exist"):
        create_ledger(hospital(path="another/l.sqlite", cohort="2027"), _console())


def test_repair_renews_a_lost_second_place_and_never_a_ledger_that_is_behind(hospital):
    site_file = hospital()
    create_ledger(site_file, _console())
    witness, ledger = (site_file.parent / name for name in ("witness/l.json", "ledger/l.sqlite"))
    console = _console()
    repair_ledger(site_file, console)
    witness.unlink()
    assert verify_ledger(site_file, console) == 1
    repair_ledger(site_file, console)
    show_ledger(site_file, console)
    for part in (
        "nothing to repair",
        "does not exist: put it back",
        "anew; the ledger keeps a note",
        "was made anew on",
    ):
        assert part in console.file.getvalue()
    ledger.write_bytes(b"")
    with pytest.raises(UserError, match=r"is empty.*newest copy"):
        repair_ledger(site_file, console)


def test_second_place_lies_in_another_folder():
    with pytest.raises(ValueError, match="lies in the folder of path"):
        LedgerSettings(path="a/l.sqlite", witness="a/l.json", cohort="c", epsilon=3.0, delta=1e-5)


def test_second_place_that_links_lead_into_the_ledgers_folder_is_refused(hospital):
    site_file = hospital()
    (site_file.parent / "ledger").mkdir()
    (site_file.parent / "witness").symlink_to(site_file.parent / "ledger")
    with pytest.raises(UserError, match=r"leads to the folder of the ledger.*another folder"):
        create_ledger(site_file, _console())


def test_repair_leaves_a_file_that_is_no_second_place(hospital):
    site_file = hospital()
    create_ledger(site_file, _console())
    witness = site_file.parent / "witness" / "l.json"
    witness.write_text("patient,age\n1,70\n")
    with pytest.raises(UserError, match=r"l.json of ledger .* is unreadable.*move what lies there away"):
        repair_ledger(site_file, _console())
    assert witness.read_text() == "patient,age\n1,70\n"


@pytest.mark.parametrize("damage", [b"no database at all", None])
def test_damaged_ledger_is_refused_in_one_line_with_path_and_remedy(hospital, damage):
    site_file = hospital()
    create_ledger(site_file, _console())
    path = site_file.parent / "ledger" / "l.sqlite"
    path.write_bytes(damage or path.read_bytes()[:6000])
    with pytest.raises(UserError, match=r"newest copy back") as error:
        show_ledger(site_file, _console())
    assert str(error.value).count(str(path)) == 1
    console = Console(file=io.StringIO(), width=40)
    assert verify_ledger(site_file, console) == 1
    assert len(console.file.getvalue().splitlines()) == 1


@pytest.mark.parametrize("delta", [0.1, 1 / 149])
def test_cohort_is_not_made_with_a_delta_that_no_request_may_have(hospital, delta):
    with pytest.raises(UserError, match=r"ledger.delta is .*: it must be below 0.00666667"):
        create_ledger(hospital(delta=delta), _console())
    create_ledger(hospital(delta=1 / 151), _console())
