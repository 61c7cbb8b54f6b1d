"""App bundles of others: one with code, one without."""

from pathlib import Path

from fl_dpbayes.engine.flower_command import APP_PROJECT

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
    project = (
        APP_PROJECT.format(version="1.0").partition("scenario =")[0] + 'nodes = 0\noutput = ""\n'
    )
    for ours, theirs in (
        ("fl-dpbayes-run", name),
        ('"fl-dpbayes"', '"elsewhere"'),
        ("clients.app:app", client),
        ("server.app:app", "tests.deploy.probe:app"),
    ):
        project = project.replace(ours, theirs)
    folder.mkdir()
    (folder / "pyproject.toml").write_text(project)
    if code:
        (folder / "foreign.py").write_text(code)
    return folder
