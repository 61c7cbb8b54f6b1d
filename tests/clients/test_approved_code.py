"""Code that changed since its approval: refused before a record is read, and told by commands."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from fl_dpbayes.config import installed_code
from fl_dpbayes.config.approvals import approvals_file, read_approvals
from fl_dpbayes.config.approved_code import approve_bundle
from fl_dpbayes.config.site_file import read_own_site_file
from fl_dpbayes.files.audit_log import read_audit_log
from fl_dpbayes.hospital.bundle import decision, read_bundle
from fl_dpbayes.hospital.node import own_bundle
from tests.asking import ROWS, refusal_of

ROOT = Path(__file__).parents[2]
CHANGES = {
    "a line of the app": ("clients/train.py", "\n# another line\n"),
    "a line of the library": ("fl_dpbayes/privacy/filter.py", "\n"),
    "data of the package": ("fl_dpbayes/scenarios.json", "{}"),
    "a new module": ("clients/more.py", ""),
    "a new folder of modules": ("fl_dpbayes/more/__init__.py", ""),
    "a line of an approved factory": ("beside/ownnet/__init__.py", "\n"),
    "a binary of its distribution": ("beside/ownnet_core/fast.so", "x"),
}


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Path:
    """Let this package, and one with a factory, be found in a folder that a test may change."""
    folder, beside = tmp_path / "installed", tmp_path / "installed" / "beside"
    for name in installed_code.PACKAGE_FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    beside.mkdir()
    for name in ("ownnet", "ownnet_core"):
        (beside / name).mkdir()
        (beside / name / "__init__.py").write_text("made = None\n")
    (beside / "ownnet-1.0.dist-info").mkdir()
    (beside / "ownnet-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: ownnet\nVersion: 1.0\n"
    )
    record = "ownnet/__init__.py,,\nownnet_core/__init__.py,,\n"
    (beside / "ownnet-1.0.dist-info" / "RECORD").write_text(record)
    monkeypatch.setattr(installed_code, "HOME", folder)
    monkeypatch.syspath_prepend(beside)
    installed_code._owners.cache_clear()
    yield folder
    installed_code._owners.cache_clear()


@pytest.fixture
def approved(table_site, installed):
    """A hospital's node whose steward approved the bundle, with the code that is installed."""
    site = table_site()
    policy = {"max_run_epsilon": 4.0, "allowed_code": ["ownnet:made"]}
    site.write(ROWS, policy=policy, connection={"superlink": "localhost:1"}, snapshot="none.npz")
    assert refusal_of(site.answer("query")) == ("CODE_NOT_APPROVED", "")
    approve_bundle(read_own_site_file(site.path), site.path, read_bundle(own_bundle()).sha256)
    assert refusal_of(site.answer("query")) is None
    return site


def changed(folder: Path, change: str) -> None:
    name, text = CHANGES[change]
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(text)


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_code_that_changed_is_refused_before_a_record_is_read_and_told(
    approved, installed, command, monkeypatch, change: str
) -> None:
    assert "NOT APPROVED" not in command("site", "approve", approved.path)[1]
    changed(installed, change)
    monkeypatch.setattr("clients.train.load_site", lambda _: pytest.fail("a record was read"))
    for ask in (lambda: approved.answer("query"), approved.train):
        assert refusal_of(ask()) == ("CODE_NOT_APPROVED", "")
    assert {line["refusal"]["code"] for line in list(read_audit_log(approved.path))[-2:]} == {
        "CODE_NOT_APPROVED"
    }
    # The node's own process looks as well, before the bundle reaches the app.
    bundle = own_bundle()
    assert "not as it was approved" in decision(approved.path, read_bundle(bundle), bundle)
    whose = "ownnet:made" if "ownnet" in CHANGES[change][0] else "fl-dpbayes"
    for words, told in (
        (("approve",), f"NOT APPROVED: {whose}"),
        (("check",), f"FAIL  code: {whose}"),
        (("statement",), f"CODE NOT AS APPROVED: {whose}"),
    ):
        status, said, _ = command("site", *words, approved.path)
        assert told in said, said
        assert status == (0 if words == ("approve",) else 1)
    assert command("site", "approve", approved.path, read_bundle(bundle).sha256, "--yes")[0] == 0
    assert refusal_of(approved.answer("query")) is None


@pytest.mark.slow
def test_approval_shows_the_digest_of_every_distribution_and_what_python_compiles_is_left_out(
    approved, installed, command
) -> None:
    digest = read_bundle(own_bundle()).sha256
    _, said, _ = command("site", "approve", approved.path, digest, "--yes")
    for name, each in read_approvals(approved.path).code.items():
        assert f"installed: {name}" in said
        assert each in said
    (installed / "clients" / "__pycache__").mkdir()
    (installed / "clients" / "__pycache__" / "train.cpython-311.pyc").write_bytes(b"other")
    assert refusal_of(approved.answer("query")) is None


@pytest.mark.slow
def test_app_that_python_took_from_elsewhere_is_refused_and_told(
    approved, command, monkeypatch, tmp_path
) -> None:
    elsewhere = ModuleType("clients")
    elsewhere.__file__ = str(tmp_path / "shadow" / "clients" / "__init__.py")
    monkeypatch.setitem(sys.modules, "clients", elsewhere)
    for ask in (lambda: approved.answer("query"), approved.train):
        assert refusal_of(ask()) == ("CODE_NOT_APPROVED", "")
    bundle = own_bundle()
    assert "shadow" in decision(approved.path, read_bundle(bundle), bundle)


def test_code_that_the_policy_allows_later_needs_an_approval(approved) -> None:
    text = approved.path.read_text().replace(
        '"ownnet:made"', '"ownnet:made",\n"tests.asking:evaluate"'
    )
    approved.path.write_text(text)
    assert refusal_of(approved.answer("query")) == ("CODE_NOT_APPROVED", "")


def test_approvals_that_cannot_be_read_let_nothing_run_and_those_of_before_ask_anew(
    approved,
) -> None:
    before = approvals_file(approved.path).read_text().partition("[code]")[0]
    approvals_file(approved.path).write_text(before)
    assert refusal_of(approved.train()) == ("CODE_NOT_APPROVED", "")
    approvals_file(approved.path).write_text("code = 3")
    assert refusal_of(approved.train()) == ("SITE_FILE_INVALID", "")


def test_files_that_are_digested_are_those_that_are_imported() -> None:
    code = (
        "import clients, server, fl_dpbayes; print(*(m.__path__[0] for m in (fl_dpbayes, "
        "clients, server)))"
    )
    places = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert [Path(place) for place in places] == [
        installed_code.HOME / name for name in installed_code.PACKAGE_FOLDERS
    ]


@pytest.mark.parametrize("name", ["zipped_package/__init__.py", "zipped_module.py"])
def test_change_of_code_in_an_archive_changes_its_digest(tmp_path, monkeypatch, name: str) -> None:
    archive = tmp_path / "ownnet.zip"
    monkeypatch.syspath_prepend(archive)
    digests = set()
    for text in ("made = None", "made = 12345"):
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr(name, text)
        sys.path_importer_cache.clear()
        code = installed_code.installed_code(f"{name.partition('/')[0].removesuffix('.py')}:made")
        digests.add(code.digest)
    assert len(digests) == 2
