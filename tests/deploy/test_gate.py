"""The gate by itself: which bundles pass, what is held, and that no node starts where Flower goes round it."""

import hashlib
import io
import re
import warnings
import zipfile
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from flwr.supercore.fab import Fab
from flwr.supernode import start_client_internal as flower
from rich.console import Console

from fl_dpbayes.config.approvals import (
    MOST_HELD,
    approvals_file,
    approve,
    held,
    hold,
    node_log,
    read_approvals,
)
from fl_dpbayes.config.approved_code import approve_bundle
from fl_dpbayes.config.site_file import Connection, read_own_site_file, write_site_file
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.audit_log import read_audit_log
from fl_dpbayes.hospital import node
from fl_dpbayes.hospital.approve import approve_digest, show_waiting
from fl_dpbayes.hospital.bundle import decision, own_list, read_bundle
from fl_dpbayes.hospital.keys import make_keys
from tests.asking import refused
from tests.deploy.sites import site_record

PROJECT = zipfile.ZipFile(io.BytesIO(node.own_bundle())).read("pyproject.toml").decode()


@pytest.fixture
def site_file(tmp_path, monkeypatch):
    monkeypatch.setattr(flower, "_init_connection", flower._init_connection)
    monkeypatch.setattr("os.environ", dict(node.os.environ))
    record = site_record(tmp_path, "north").model_copy(
        update={"connection": Connection(superlink="localhost:1")}
    )
    write_site_file(record, tmp_path / "north.toml")
    make_keys(tmp_path / "north.toml", Console(quiet=True))
    (tmp_path / "ca.crt").touch()
    return tmp_path / "north.toml"


def zipped(*files: tuple[str, str], project: str = PROJECT, listed: str | None = None) -> bytes:
    buffer, listed = io.BytesIO(), own_list(project.encode()) if listed is None else listed
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w") as archive:
        for name, text in (("pyproject.toml", project), (".info/CONTENT", listed), *files):
            archive.writestr(name, text)
    return buffer.getvalue()


def passed(site_file, content: bytes, **told: str) -> Fab:
    """What Flower gets, when the SuperLink sends a bundle and tells this of it."""
    bundle = read_bundle(content)
    run = {"fab_hash": bundle.sha256, "fab_id": bundle.app, "fab_version": bundle.version}
    run = SimpleNamespace(**run | {"primary_task_type": "flwr-serverapp"} | told)

    @contextmanager
    def connect():
        yield (
            1,
            None,
            None,
            lambda _: run,
            lambda *_: Fab(told.get("hash_str", bundle.sha256), content, {}),
            None,
        )

    gate = node.Gate(lambda *given: decision(site_file, *given))
    with gate.around(connect)() as (_, _, _, get_run, get_fab, _):
        get_run(7)
        fab = get_fab(run.fab_hash, 7)
    # Flower's own check is the second lock.
    assert bool(fab.verifications and flower._verify_fab(fab, gate.trusted)) == bool(fab.content)
    return fab


CODE = ("extra.py", "print()")
NEVER = {
    "code": zipped(CODE),
    "two project files": zipped(("pyproject.toml", PROJECT)),
    "no archive": b"PK",
    "another app": zipped(project=PROJECT.replace("clients.app:app", "os:system")),
    "an agent": zipped(
        project=PROJECT.replace("clientapp =", 'agentapp = "clients.app:app"\nclientapp =')
    ),
    "no version": zipped(project=PROJECT.replace("version", "vision")),
    "a bomb": zipped(project="#" * 10**6),
    "a list of files of the site": zipped(listed=f"../../patients.csv,{'0' * 64},8"),
    "a version that is a path": zipped(
        project=re.sub('version = "[^"]*"', 'version = "1/../../x"', PROJECT)
    ),
}


@pytest.mark.parametrize("what", NEVER)
def test_what_no_approval_lets_through(site_file, what) -> None:
    approve(site_file, "bundles", hashlib.sha256(NEVER[what]).hexdigest())
    assert passed(site_file, NEVER[what]).content == b""


def test_only_an_approved_bundle_passes_and_every_decision_is_a_line(site_file) -> None:
    thin = zipped()
    sha256 = hashlib.sha256(thin).hexdigest()
    assert passed(site_file, thin).content == b""
    assert [digest for _, digest, _ in held(site_file)] == [sha256]
    approve_bundle(read_own_site_file(site_file), site_file, sha256)
    assert passed(site_file, thin).content == thin
    assert list(held(site_file)) == []
    # What the SuperLink says of it must be so: an app is looked up by that.
    for told in (
        {"fab_id": "a/b"},
        {"fab_version": "../../x"},
        {"fab_hash": "0" * 64},
        {"hash_str": "0" * 64},
        {"primary_task_type": "flwr-agentapp"},
    ):
        assert passed(site_file, thin, **told).content == b"", told
    approvals_file(site_file).write_text("bundles = 3")
    assert passed(site_file, thin).content == b""
    lines = list(read_audit_log(node_log(site_file)))
    assert [line["decision"] for line in lines] == ["refused", "runs", *["refused"] * 6]
    assert {line["bundle"] for line in lines} == {sha256}


def test_held_bundles_cannot_fill_a_disk_and_the_first_stay(site_file) -> None:
    passed(site_file, zipped(("big.py", "#" * 5 * 2**20)))
    assert list(held(site_file)) == []
    for number in range(MOST_HELD + 3):
        passed(site_file, zipped(project=PROJECT + f"# {number}"))
    assert len(list(held(site_file))) == MOST_HELD
    assert "folder is full" in list(read_audit_log(node_log(site_file)))[-1]["reason"]


def test_steward_sees_a_plan_before_it_is_approved(site_file) -> None:
    text = '{"kind":"TrainRequest","plan":{"epsilon":2.0}}'
    digest = hashlib.sha256(text.encode()).hexdigest()
    console = Console(file=io.StringIO(), width=200)
    assert hold(site_file, "plans", digest, text.encode())
    assert hold(site_file, "plans", "0" * 64, text.encode())
    refused("not approved", approve_digest, site_file, digest, console, lambda _: False)
    (site_file.parent / "north.held" / "bundles" / "unreadable.fab").mkdir(parents=True)
    for unfit in ("0" * 64, digest[:63], "f" * 64):
        refused(
            r"changed|nothing readable waits under",
            approve_digest,
            site_file,
            unfit,
            console,
            lambda _: True,
        )
    assert read_approvals(site_file).plans == ()
    approve_digest(site_file, digest, console, lambda _: True)
    assert read_approvals(site_file).plans == (digest,)
    show_waiting(site_file, console)
    shown = console.file.getvalue()
    assert '"epsilon": 2.0' in shown
    assert re.search(
        rf"waits: plan 0{{64}}\napproved: plan {digest} by \S+ on 20\d\d-\d\d-", shown
    ), shown
    # The bundle of the installed version need not wait.
    approve_digest(
        site_file, hashlib.sha256(node.own_bundle()).hexdigest(), console, lambda _: True
    )
    assert passed(site_file, node.own_bundle()).content == node.own_bundle()


PULL = flower._pull_and_store_message
ROUND = {  # what of Flower or of the gate is another -> what is said
    "no gate": (node, "install", lambda gate: None, "did not ask"),
    "open gate": (
        node,
        "read_bundle",
        lambda content: replace(read_bundle(content), problem=""),
        "let a foreign",
    ),
    "no place": (flower, "_init_connection", None, "no place"),
    "broken Flower": (flower, "_verify_fab", None, "cannot be tried"),
    "Flower that trusts all": (
        flower,
        "_pull_and_store_message",
        lambda **given: PULL(**given | {"trusted_entities": None}),
        "cannot be tried",
    ),
}


@pytest.mark.parametrize(("place", "name", "other", "said"), ROUND.values(), ids=ROUND)
def test_node_does_not_start_where_flower_goes_round_the_gate(
    site_file, monkeypatch, place, name, other, said
) -> None:
    monkeypatch.setattr(place, name, other) if other else monkeypatch.delattr(place, name)
    refused(f"does not start: .*{said}", node.start_node, site_file)


def test_no_proxy_stands_between_node_and_app(monkeypatch) -> None:
    monkeypatch.setattr(
        "os.environ", {"HTTP_PROXY": "http://203.0.113.1:1", "no_proxy": "intranet"}
    )
    node._prepare_home()
    proxies = httpx._utils.get_environment_proxies()
    assert {proxies["all://127.0.0.1"], proxies["all://*intranet"]} == {None}


@pytest.mark.parametrize(("name", "mode"), [("node.key", 0o640), ("node.secret", 0o644)])
def test_node_does_not_start_with_a_key_that_others_read(site_file, name, mode) -> None:
    (site_file.parent / name).chmod(mode)
    refused(f"{name} can be read by others", node.start_node, site_file)
    (site_file.parent / name).chmod(0o600)
    refused(
        r"does not start \(.*\): is .*ca.crt a certificate, and .* 9094, free",
        node.start_node,
        site_file,
    )


def test_node_does_not_start_with_a_key_that_is_none(site_file) -> None:
    (site_file.parent / "node.key").write_text("no key")
    refused("node.key is no private key .*site keys SITE_FILE", node.start_node, site_file)


def test_keys_that_cannot_all_be_written_are_made_anew(site_file) -> None:
    key, public = (site_file.parent / name for name in ("node.key", "north.pub"))
    key.unlink()
    public.unlink()
    public.mkdir()
    with pytest.raises(UserError, match=r"north.pub cannot be written"):
        make_keys(site_file, Console(quiet=True))
    public.rmdir()
    make_keys(site_file, Console(quiet=True))
    assert (key.stat().st_mode & 0o777, public.read_text()[-7:]) == (0o600, " north\n")


def test_gate_holds_in_the_installed_flower(site_file) -> None:
    gate = node.Gate(lambda *_: "closed")
    node.install(gate)
    node.try_gate(gate)
    assert gate.decide(None, b"", "") == "closed"


def test_flower_has_no_login_of_its_own_for_who_starts_runs() -> None:
    # docs/deployment.md says who may reach the Control API, since the installed Flower lets in
    # whoever does.
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
    from flwr.superlink.config_loader import get_control_authn_ee_plugins, load_control_authn_plugin

    assert get_control_authn_ee_plugins() == {}
    assert isinstance(load_control_authn_plugin(), NoOpControlAuthnPlugin)
    assert load_control_authn_plugin().validate_tokens_in_metadata([])[0]
