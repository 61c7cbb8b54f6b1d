"""App bundles of others: one with code, one without."""

from pathlib import Path

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
