"""What a hostile ServerApp gets of a hospital's node: no canary is in it."""

import json
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fl_dpbayes.engine.inline_engine import InlineGrid
from fl_dpbayes.files.audit_log import read_audit_log
from tests.asking import ROWS, SOURCE, evaluate, refusal_of
from tests.forked import ROOT, run_forked

CANARY = "Gundel-Gaukeley"
GROUPS = [
    f"{CANARY} ward" if number < 12 else ("east", "west")[number % 2] for number in range(len(ROWS))
]
WARDS = SOURCE | {"group_columns": ["ward"]}
POLICY = {
    "max_run_epsilon": 4.0,
    "evaluation_release": "public",
    "groups": {"ward": ["east", "west"]},
    "least_group_units": 2,
}


def seen_by_a_hostile_server(site) -> tuple[str, list[tuple[str, str] | None]]:
    """Everything that a server gets when it asks for all it can, as text, and what was refused."""
    from clients.app import app

    requests: list[Message] = []
    site.answer = lambda kind, record=None, arrays=None: requests.append(
        site.message(kind, record, arrays)
    )
    site.answer("query")
    site.train()
    evaluate(site)
    site.answer("train.recalibrate", {"nonsense": 1})
    del site.answer
    grid = InlineGrid(app, 1)
    grid._contexts[1] = Context(1, 1, {"site-file": str(site.path)}, RecordDict(), {})
    replies = list(grid.send_and_receive(requests))
    text = ""
    for reply in replies:
        text += f"{reply.metadata}{reply.error.reason if reply.has_error() else ''}"
        content = reply.content if reply.has_content() else RecordDict()
        text += "".join(str(dict(record)) for record in content.config_records.values())
        arrays = (array for record in content.array_records.values() for array in record.values())
        text += "".join(array.data.decode("latin-1") for array in arrays)
    return text, [refusal_of(reply) for reply in replies]


PLACE = {"path": "ledger/north.sqlite", "witness": "witness/north.json"}
# Place -> code, what is written otherwise, and what is put into a file later.
PLANTED: dict[str, tuple] = {
    "group": ("", {}),
    "patient id": ("", {"rows": [(f"{CANARY} {row[0]}", *row[1:]) for row in ROWS]}),
    "cell": ("DATA_INVALID", {}, "patients.csv", repr(ROWS[7][1]), CANARY),
    "path of the data": ("DATA_INVALID", {"source": WARDS | {"path": f"{CANARY}.csv"}}),
    "policy": (
        "SITE_FILE_INVALID",
        {},
        "site.toml",
        "[policy]",
        f'[policy]\n{CANARY} = "{CANARY}"',
    ),
    "path of the site file": ("SITE_FILE_MISSING", {}),
    "cohort": (
        "COHORT_CHANGED",
        {"ledger": PLACE | {"cohort": CANARY, "epsilon": 8.0, "delta": 1e-3}},
        "site.toml",
        "epsilon = 8.0",
        "epsilon = 9.0",
    ),
    "import error": ("INSTALLATION_BROKEN", ImportError(CANARY)),
    "memory error": ("INTERNAL", MemoryError(CANARY)),
    "CUDA error": ("INTERNAL", torch.cuda.OutOfMemoryError(f"CUDA out of memory: {CANARY}")),
    "exit": ("INTERNAL", SystemExit(CANARY)),
}


@pytest.mark.parametrize("place", PLANTED)
def test_no_canary_reaches_a_hostile_server(table_site, monkeypatch, place: str) -> None:
    code, changes, *later = PLANTED[place]
    site = table_site()
    if isinstance(changes, BaseException):
        for name in (
            "clients.train.load_site",
            "clients.evaluate.load_site",
            "clients.answer.card_of",
        ):
            monkeypatch.setattr(name, Mock(side_effect=changes))
        changes = {}
    site.write(**{"rows": ROWS, "source": WARDS, "policy": POLICY} | changes)
    table = site.folder / "patients.csv"
    table.write_text(
        "\n".join(
            map(",".join, zip(table.read_text().splitlines(), ["ward", *GROUPS], strict=True))
        )
    )
    if later:
        file, old, new = later
        (site.folder / file).write_text((site.folder / file).read_text().replace(old, new))
    if place == "path of the site file":
        site.path = site.path.with_name(f"{CANARY}.toml")
    text, refusals = seen_by_a_hostile_server(site)
    assert CANARY not in text
    if code:
        assert {refusal for refusal in refusals if refusal} - {("BAD_REQUEST", "run")} == {
            (code, "")
        }
    else:
        assert refusals == [None, None, None, ("BAD_REQUEST", "run")]
        assert all(f'["ward","{value}"]' in text for value in ("east", "other", "west"))
    decisions = [
        line["decision"] for line in read_audit_log(site.path) if line["decision"] != "asked"
    ]
    assert decisions == ["refused" if refusal else "answered" for refusal in refusals]


BROKEN = """
import json, sys
from importlib.abc import MetaPathFinder

class Broken(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            raise ImportError({canary!r})

sys.meta_path.insert(0, Broken())
from flwr.app import Context, Message, RecordDict
from flwr.supercore.object_ref import load_app
from flwr.clientapp.client_app import LoadClientAppError
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
app = load_app("clients.app:app", LoadClientAppError, {root!r})
for kind in ("query", "train", "train.recalibrate", "evaluate"):
    message = Message(RecordDict(), dst_node_id=1, message_type=kind)
    message.metadata.__dict__["_message_id"] = "1"
    reply = app(message, Context(1, 1, {{"site-file": {site_file!r}}}, RecordDict(), {{}}))
    print(json.dumps(dict(reply.content["config"])))
"""
MODULES = ("torch", "pydantic", "fl_dpbayes.config.site_file", "clients.answer")


@pytest.mark.slow
def test_import_that_fails_is_a_code_and_a_line_of_the_log(table_site) -> None:
    sites = {module: table_site(module) for module in MODULES}
    for site in sites.values():
        site.write(ROWS)
    codes = {
        module: BROKEN.format(
            module=module, canary=CANARY, root=str(ROOT), site_file=str(site.path)
        )
        for module, site in sites.items()
    }
    for module, ended in run_forked("import flwr.clientapp, pandas, scipy.stats", codes).items():
        assert ended.status == 0, ended.errors
        refusals = [json.loads(json.loads(line)["refusal"]) for line in ended.output.splitlines()]
        assert refusals == [{"code": "INSTALLATION_BROKEN", "field": ""}] * 4, module
        assert CANARY not in ended.output
        logged = [line["refusal"]["code"] for line in read_audit_log(sites[module].path)]
        assert logged == ["INSTALLATION_BROKEN"] * 4, module


@pytest.mark.slow
def test_importing_the_app_costs_under_two_cpu_seconds_and_loads_no_torch() -> None:
    asked = (
        "import sys, time, clients.app; print(sorted({'torch', 'scipy', 'sklearn', "
        "'pydantic'} & set(sys.modules)))"
    )
    asked += "; print(time.process_time() < 2)"
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\nTrue\n"
