"""What `provision` and `make wheelhouse` write works: units, nginx before a SuperLink, an install without index."""

import io
import os
import re
import shutil
import ssl
import subprocess
import sys
import tomllib
from contextlib import closing
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from rich.console import Console

from fl_dpbayes.coordinator.provision import provision
from fl_dpbayes.errors import UserError
from tests.deploy.real_federation import BIN, REPOSITORY, RealFederation, free_port, wait_for
from tests.deploy.sites import site_record
from tests.hospital.conftest import files_in

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx-light")
def test_nginx_lets_hospitals_reach_the_fleet_api_and_nothing_else(tmp_path) -> None:
    federation, port = RealFederation(tmp_path, ["north"]), free_port()
    ours = federation.kit / "coordinator"
    text = (
        (ours / "nginx.conf")
        .read_text()
        .replace("/etc/fl-dpbayes", str(ours))
        .replace("443 ssl", f"{port} ssl")
    )
    temporary = "".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy"))
    files = f"pid {tmp_path}/nginx.pid; error_log {tmp_path}/nginx.error;"
    (tmp_path / "nginx.conf").write_text(
        f"{files} events {{}} http {{ access_log off; {temporary} {text} }}"
    )
    try:
        federation.start_superlink()
        federation.start("nginx", NGINX, "-c", tmp_path / "nginx.conf", "-g", "daemon off;")
        wait_for(lambda: federation.listens(port))
        # A node gets through: it is up, which takes an answer of the Fleet API.
        site_file = federation.add_site(
            site_record(tmp_path / "north", "north"), f"localhost:{port}"
        )
        federation.register(site_file, "north")
        federation.start_site(site_file)
        trust = ssl.create_default_context(cafile=ours / "ca.crt")

        def status(path: str, at: int) -> int:
            with closing(HTTPSConnection("localhost", at, context=trust)) as connection:
                connection.request("POST", path, b"")
                return connection.getresponse().status

        kept = [
            "/v1/control/list-runs",
            "/v1/runtime/acquire-task",
            "/docs",
            "/openapi.json",
            "/health",
            "/",
        ]
        hidden = [f"/v1/fleet/{up}control/list-runs" for up in ("../", "..%2f", "%2e%2e/", ";/../")]
        assert {path: status(path, port) for path in kept + hidden} == dict.fromkeys(
            kept + hidden, 403
        )
        # The SuperLink itself answers there, so that it is nginx that refuses.
        assert 403 not in {status(path, federation.port) for path in kept}
        assert status("/v1/fleet/pull-messages", port) not in (403, 404)
    finally:
        federation.end()


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
def test_units_restart_without_limit_and_systemd_reads_them(tmp_path) -> None:
    provision(tmp_path, ["north"], "fl.example.org", 8443, Console(quiet=True))
    units = sorted(tmp_path.rglob("*.service"))
    assert len(units) == 4
    for unit in units:
        text = unit.read_text()
        assert {"Restart=always", "RestartSec=15", "StartLimitIntervalSec=0"} <= set(
            text.splitlines()
        )
        unit.write_text(text.replace("/opt/fl-dpbayes/bin/", f"{BIN}/"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    app = (tmp_path / "hospital" / "fl-dpbayes-app.service").read_text()
    assert "InaccessiblePaths=/etc/fl-dpbayes/node.key" in app


def provisioned(folder, sites="north", host="10.0.0.7", port=8443) -> str:
    """Provision, and return what is said, also of a refusal."""
    try:
        provision(
            folder, sites.split(","), host, port, console := Console(file=io.StringIO(), width=1000)
        )
    except UserError as error:
        return f"REFUSED {error}"
    return console.file.getvalue()


def test_provision_renews_the_certificate_adds_sites_and_overwrites_nothing_else(tmp_path) -> None:
    provisioned(tmp_path)
    ours, before = tmp_path / "coordinator", files_in(tmp_path)
    for change in (
        {"host": "typo.example"},
        {"port": 9999},
        {"sites": "a,a"},
        {"sites": "a b"},
        {"host": "h;x"},
    ):
        assert re.match(
            r"REFUSED (\S+ says host=10.0.0.7 |--(sites|host) is)", provisioned(tmp_path, **change)
        )
    assert files_in(tmp_path) == before
    # An eleventh hospital needs no key of the authority.
    key = (ours / "ca.key").rename(tmp_path / "key")
    assert "added east to" in provisioned(tmp_path, "north,east")
    assert 'sites="north east"' in (ours / "register.sh").read_text()
    assert "put it back" in provisioned(tmp_path)
    key.rename(ours / "ca.key")
    assert "renewed" in provisioned(tmp_path)
    after = files_in(tmp_path)
    assert {Path(name).name for name in after if after[name] != before[name]} == {
        "server.pem",
        "register.sh",
    }
    modes = {path.name: path.stat().st_mode & 0o777 for path in ours.iterdir()}
    assert (modes["ca.key"], modes["server.key"], modes["server.secret"]) == (0o600, 0o600, 0o640)
    for wrong, said in (
        (b"", "is no private key"),
        ((ours / "server.key").read_bytes(), "not the key of the ca.crt"),
    ):
        (ours / "ca.key").write_bytes(wrong)
        assert said in provisioned(tmp_path)
    assert (ours / "server.pem").read_bytes() == after[str(ours / "server.pem")]


@pytest.mark.parametrize(
    "kept", ["", "ca.key ca.crt server.key server.pem", "ca.key ca.crt register.sh"]
)
def test_provision_that_was_cut_off_goes_on_and_leaves_no_empty_key(
    tmp_path, monkeypatch, kept
) -> None:
    with monkeypatch.context() as full:
        full.setattr("os.fchmod", lambda *_: os.open("/proc/none", 0))
        assert "cannot be written" in provisioned(tmp_path)
    assert files_in(tmp_path) == {}
    assert provisioned(tmp_path).startswith("made")
    whole = files_in(tmp_path)
    for path in (Path(name) for name in whole if Path(name).name not in kept.split()):
        path.unlink()
    (tmp_path / "coordinator" / "keys").rmdir()
    assert provisioned(tmp_path).startswith("made")
    assert files_in(tmp_path).keys() == whole.keys()
    wheel = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["hatch"]["build"][
        "targets"
    ]["wheel"]
    read = {f"deploy/{path.name}" for path in (REPOSITORY / "deploy").iterdir()}
    lists = {
        "constraints.txt",
        "hospital.in",
        "hospital.txt",
        "hospital-images.in",
        "hospital-images.txt",
    }
    assert read - wheel["force-include"].keys() == {f"deploy/{name}" for name in lists}


def test_register_sh_goes_on_after_each_site_and_says_who_is_missing(tmp_path) -> None:
    provisioned(tmp_path, "old,late,new,bad")
    for name in ("old", "new", "bad"):
        (tmp_path / "coordinator" / "keys" / f"{name}.pub").touch()
    (tmp_path / "flwr").write_text(
        "#!/bin/sh\ncase $3 in */old*) echo '[code: 23]'; exit 1;; */bad*) exit 1;; esac"
    )
    (tmp_path / "flwr").chmod(0o755)
    command, path = (
        ["sh", tmp_path / "coordinator" / "register.sh"],
        f"{tmp_path}:{os.environ['PATH']}",
    )
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)
    told = ["old: this key wa", "late: NOT REGIST", "new: registered", "bad: NOT REGISTE"]
    assert (done.returncode, [line[:16] for line in done.stdout.splitlines()]) == (1, told)


def pinned(name: str) -> dict[str, str]:
    """Package and version -> all of its block, of a list in deploy/."""
    blocks = re.split(r"\n(?=\S)", (REPOSITORY / "deploy" / name).read_text())
    return {
        re.split(r"[\s;]", block, maxsplit=1)[0]: block.strip() for block in blocks if "==" in block
    }


def test_hospital_s_list_is_a_part_of_the_lock_without_what_no_site_needs() -> None:
    lock, site, images = (
        pinned(f"{name}.txt") for name in ("constraints", "hospital", "hospital-images")
    )
    assert {*site, *images} <= set(lock)
    names = {pin.partition("==")[0] for pin in site}
    assert names.isdisjoint({"ray", "flwr-datasets", "datasets", "matplotlib", "torchvision"})
    assert {"torch", "flwr", "opacus", "pydantic", "cryptography"} <= names
    assert {pin.partition("==")[0] for pin in images} == {"torchvision"}
    hashes = {word for block in lock.values() for word in re.findall("sha256:[0-9a-f]{64}", block)}
    assert {
        word
        for block in (site | images).values()
        for word in re.findall("sha256:[0-9a-f]{64}", block)
    } <= hashes


@pytest.mark.slow
def test_wheelhouse_installs_without_an_index_and_only_what_the_lock_names(tmp_path) -> None:
    # The whole is 3 GB: two of its packages, and our own, show the way.
    blocks = re.split(r"\n(?=\S)", (REPOSITORY / "deploy" / "constraints.txt").read_text())
    lock = [f"{block}\n" for block in blocks if block.startswith(("mdurl=", "tomli-w="))]
    (tmp_path / "lock.txt").write_text("".join(lock))
    (tmp_path / "hospital.txt").write_text(lock[-1])
    house = tmp_path / "house"
    subprocess.run(
        [
            "make",
            "wheelhouse",
            f"VENV={sys.prefix}",
            "-o",
            f"{sys.prefix}/.installed",
            f"WHEELHOUSE={house}",
            f"LOCK={tmp_path}/lock.txt",
            f"HOSPITAL={tmp_path}/hospital.txt",
        ],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        timeout=300,
    )
    install = [
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "install",
        "--no-index",
        "--no-deps",
        "--find-links",
        house,
    ]
    install += ["--require-hashes", "--requirement", house / "constraints.txt", "--target"]
    assert (
        subprocess.run([*install, tmp_path / "there"], capture_output=True, timeout=300).returncode
        == 0
    )
    found = {path.name.split("-")[0] for path in (tmp_path / "there").glob("*.dist-info")}
    assert found == {"mdurl", "tomli_w", "fl_dpbayes"}
    assert (tmp_path / "there" / "fl_dpbayes" / "deploy" / "hospital.toml").is_file()
    of_site = [*install[:-2], house / "hospital.txt", "--target", tmp_path / "site"]
    assert subprocess.run(of_site, capture_output=True, timeout=300).returncode == 0
    assert {path.name.split("-")[0] for path in (tmp_path / "site").glob("*.dist-info")} == {
        "tomli_w",
        "fl_dpbayes",
    }
    (wheel,) = house.glob("fl_dpbayes*.whl")
    wheel.write_bytes(wheel.read_bytes() + b" ")
    assert (
        subprocess.run(
            [*install, tmp_path / "changed"], capture_output=True, timeout=300
        ).returncode
        == 1
    )
