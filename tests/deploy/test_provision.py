"""What `provision` and `make wheelhouse` write works: units, nginx before a SuperLink, an install without index."""

import re
import shutil
import ssl
import subprocess
import sys
from contextlib import closing
from http.client import HTTPSConnection

import pytest
from rich.console import Console

from fl_dpbayes.config.errors import UserError
from fl_dpbayes.run.deploy.provision import provision
from tests.deploy.real_federation import BIN, REPOSITORY, RealFederation, free_port, wait_for
from tests.deploy.sites import site_record

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin")


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx-light")
def test_nginx_lets_hospitals_reach_the_fleet_api_and_nothing_else(tmp_path) -> None:
    federation, port = RealFederation(tmp_path, ["north"]), free_port()
    ours = federation.kit / "coordinator"
    text = (ours / "nginx.conf").read_text().replace("/etc/fl-dpbayes", str(ours)).replace("443 ssl", f"{port} ssl")
    temporary = "".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy"))
    files = f"pid {tmp_path}/nginx.pid; error_log {tmp_path}/nginx.error;"
    (tmp_path / "nginx.conf").write_text(f"{files} events {{}} http {{ access_log off; {temporary} {text} }}")
    try:
        federation.start_superlink()
        federation.start("nginx", NGINX, "-c", tmp_path / "nginx.conf", "-g", "daemon off;")
        wait_for(lambda: federation.listens(port))
        # A node gets through: it is up, which takes an answer of the Fleet API.
        site_file = federation.add_site(site_record(tmp_path / "north", "north"), f"localhost:{port}")
        federation.register(site_file, "north")
        federation.start_site(site_file)
        trust = ssl.create_default_context(cafile=ours / "ca.crt")

        def status(path: str, at: int) -> int:
            with closing(HTTPSConnection("localhost", at, context=trust)) as connection:
                connection.request("POST", path, b"")
                return connection.getresponse().status

        kept = ["/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs", "/openapi.json", "/health", "/"]
        hidden = [f"/v1/fleet/{up}control/list-runs" for up in ("../", "..%2f", "%2e%2e/", ";/../")]
        assert {path: status(path, port) for path in kept + hidden} == dict.fromkeys(kept + hidden, 403)
        # The SuperLink itself answers there, so that it is nginx that refuses.
        assert 403 not in {status(path, federation.port) for path in kept}
        assert status("/v1/fleet/pull-messages", port) not in (403, 404)
    finally:
        federation.end()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_units_restart_without_limit_and_systemd_reads_them(tmp_path) -> None:
    provision(tmp_path, ["north"], "fl.example.org", 8443, Console(quiet=True))
    units = sorted(tmp_path.rglob("*.service"))
    assert len(units) == 4
    for unit in units:
        text = unit.read_text()
        assert {"Restart=always", "RestartSec=15", "StartLimitIntervalSec=0"} <= set(text.splitlines())
        unit.write_text(text.replace("/opt/fl-dpbayes/bin/", f"{BIN}/"))
    checked = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    app = (tmp_path / "hospital" / "fl-dpbayes-app.service").read_text()
    assert "InaccessiblePaths=/etc/fl-dpbayes/node.key" in app


def test_provision_renews_the_certificate_and_overwrites_nothing_else(tmp_path) -> None:
    provision(tmp_path, ["north"], "10.0.0.7", 8443, Console(quiet=True))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    provision(tmp_path, ["north"], "10.0.0.7", 8443, Console(quiet=True))
    assert {path.name for path, content in before.items() if path.read_bytes() != content} == {"server.pem"}
    modes = {path.name: path.stat().st_mode & 0o777 for path in before}
    assert (modes["ca.key"], modes["server.key"], modes["server.secret"]) == (0o600, 0o600, 0o640)
    for sites, host in ((["a", "a"], "host"), (["a b"], "host"), (["a"], "host;x")):
        with pytest.raises(UserError, match=r"--(sites|host) is"):
            provision(tmp_path / "other", sites, host, 8443, Console(quiet=True))
    (tmp_path / "coordinator" / "ca.key").unlink()
    with pytest.raises(UserError, match="put it back"):
        provision(tmp_path, ["north"], "10.0.0.7", 8443, Console(quiet=True))


@pytest.mark.slow
def test_wheelhouse_installs_without_an_index_and_only_what_the_lock_names(tmp_path) -> None:
    # The whole is 3 GB: two of its packages, and our own, show the way.
    blocks = re.split(r"\n(?=\S)", (REPOSITORY / "deploy" / "constraints.txt").read_text())
    lock = [f"{block}\n" for block in blocks if block.startswith(("mdurl=", "tomli-w="))]
    (tmp_path / "lock.txt").write_text("".join(lock))
    house = tmp_path / "house"
    subprocess.run(
        ["make", "wheelhouse", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.installed", f"WHEELHOUSE={house}",
         f"LOCK={tmp_path}/lock.txt"], cwd=REPOSITORY, check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    install = [sys.executable, "-m", "pip", "--isolated", "install", "--no-index", "--no-deps", "--find-links", house]
    install += ["--require-hashes", "--requirement", house / "constraints.txt", "--target"]
    assert subprocess.run([*install, tmp_path / "there"], capture_output=True, timeout=300).returncode == 0
    found = {path.name.split("-")[0] for path in (tmp_path / "there").glob("*.dist-info")}
    assert found == {"mdurl", "tomli_w", "fl_dpbayes"}
    assert (tmp_path / "there" / "fl_dpbayes" / "deploy" / "hospital.toml").is_file()
    (wheel,) = house.glob("fl_dpbayes*.whl")
    wheel.write_bytes(wheel.read_bytes() + b" ")
    assert subprocess.run([*install, tmp_path / "changed"], capture_output=True, timeout=300).returncode == 1
