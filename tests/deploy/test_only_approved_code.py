"""Only approved code runs: through real processes with a foreign bundle, and the gate by itself."""

import json
from pathlib import Path

import pytest

from tests.deploy.real_federation import RealFederation, wait_for
from tests.deploy.sites import site_record

PROJECT = """\
[project]
name = "{name}"
version = "1.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "elsewhere"

[tool.flwr.app.components]
serverapp = "tests.deploy.probe:app"
clientapp = "{client}"

[tool.flwr.app.config]
nodes = 0
output = ""
"""
FOREIGN = """\
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

Path({mark!r}).touch()
app = ClientApp()


@app.query()
def query(message, context):
    text = Path(str(context.node_config["site-file"])).read_text()
    return Message(RecordDict({{"config": ConfigRecord({{"stolen": text}})}}), reply_to=message)
"""


def app_folder(folder: Path, name: str, client: str, code: str = "") -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT.format(name=name, client=client))
    if code:
        (folder / "foreign.py").write_text(code)
    return folder


@pytest.mark.slow
def test_foreign_bundle_gets_a_code_and_starts_no_process_and_approval_needs_no_restart(tmp_path) -> None:
    federation = RealFederation(tmp_path, ["north", "south"])
    try:
        federation.start_coordinator()
        files = {name: federation.add_site(site_record(tmp_path / name, name)) for name in federation.names}
        for name, file in files.items():
            federation.register(file, name)
            federation.start_site(file)
        mark, output = tmp_path / "foreign-code-ran", tmp_path / "replies.json"
        foreign = app_folder(tmp_path / "foreign", "foreign", "foreign:app", FOREIGN.format(mark=str(mark)))
        thin = app_folder(tmp_path / "thin", "thin", "clients.app:app")

        def ask(app: Path) -> list[dict]:
            assert federation.run(app, nodes="2", output=str(output)) == "finished:completed"
            return json.loads(output.read_text())

        refused = [{"code": 7, "reason": "The FAB could not be verified."}] * 2
        assert ask(foreign) == refused
        assert not mark.exists()
        # A bundle without code is refused as long as nobody approved it.
        assert ask(thin) == refused
        for name in files:
            assert "flwr-clientapp" not in federation.log(f"app-{name}")
        # One hospital approves, and what it had refused stays refused at the other.
        waiting = federation.cli("site", "approve", files["north"])
        held = {path.stem: path for path in (tmp_path / "north" / "site.held" / "bundles").glob("*.fab")}
        assert len(held) == 2
        assert all(f"waits: bundle {digest}" in waiting for digest in held)
        by_code = {b"foreign.py" in path.read_bytes(): digest for digest, path in held.items()}
        assert "brings files of its own" in federation.cli(
            "site", "approve", files["north"], by_code[True], "--yes", status=2
        )
        shown = federation.cli("site", "approve", files["north"], by_code[False], "--yes")
        assert "elsewhere/thin" in shown
        assert "foreign.py" not in shown
        cards = ask(thin)
        assert sorted("record" in reply for reply in cards) == [False, True]
        assert refused[0] in cards
        assert "flwr-clientapp" in federation.log("app-north")
        assert "flwr-clientapp" not in federation.log("app-south")
        assert all(federation.processes[f"node-{name}"].poll() is None for name in files)
        # Its key is not registered: the node ends, and says so.
        stranger = federation.add_site(site_record(tmp_path / "west", "west"))
        federation.start_site(stranger, wait=False)
        wait_for(lambda: federation.processes["node-west"].poll() is not None)
        assert "SuperNode ID" not in federation.log("node-west")
    finally:
        federation.end()
