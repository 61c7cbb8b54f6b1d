"""Each release of a site has a part of the audit that looks at it, or is listed as unseen."""

import ast
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

import clients.app
import fl_dpbayes
from fl_dpbayes.audit import declared, unseen
from fl_dpbayes.protocol.refusal import Refusal
from fl_dpbayes.protocol.train import PrivacyStatement

ROOT = Path(fl_dpbayes.__file__).parent
# What the checks of an audit are named by, as test_audit.py sees in a whole one.
PARTS = {
    "noise of training",
    "noise within a request",
    "units of 1 record",
    "units of 3 records",
    "one unit",
    "isotonic recalibration",
    "recalibration by descent",
    "noised evaluation",
    "public evaluation",
    "a new hospital's releases",
    "replies",
    "fresh noise",
    "rounding",
    "epsilon",
}
# Where noise is drawn -> the part of an audit that looks at it, or the subject in the list of what
# none looks at.
NOISE = {
    "samplers/chain.py": "noise of training",
    "samplers/gradients/clipping.py": "one unit",
    "calibration/release.py": "noised evaluation",
    "calibration/recalibration/descent.py": "recalibration by descent",
    "predict/update.py": "a new hospital's releases",
    "models/variational.py": "DRAWN",
}
# Numbers that are noise of no release: of the auditor, of benches, of made-up data, of the server,
# of start-up checks.
NOT_OF_SITES = (
    "audit/",
    "hospital/dry_run.py",
    "data/",
    "posterior/",
    "report/",
    "calibration/summarise.py",
    "models/gaussian.py",
    "models/module_checks.py",
    "models/rows.py",
    "models/strokes.py",
    "samplers/gradients/engine.py",
    "samplers/gradients/pass_shape.py",
)
DRAWING = {
    "standard_normal",
    "normal",
    "normal_vectors",
    "standard_normals",
    "randn",
    "randn_like",
    "release",
}


def handlers() -> Iterator[str]:
    tree = ast.parse(Path(clients.app.__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute):
                actions = [
                    argument.value
                    for argument in decorator.args
                    if isinstance(argument, ast.Constant)
                ]
                yield ".".join([decorator.func.attr, *actions])


def fields(model: type[BaseModel]) -> set[str]:
    names = set(model.model_fields)
    if "privacy" not in names:
        return names
    return names - {"privacy"} | {f"privacy.{name}" for name in PrivacyStatement.model_fields}


def drawing_files() -> set[str]:
    found = set()
    for folder, base in ((ROOT, ROOT), (Path(clients.app.__file__).parent, ROOT.parent)):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                called = node.func if isinstance(node, ast.Call) else None
                name = getattr(called, "attr", None) or getattr(called, "id", None)
                if name in DRAWING:
                    found.add(path.relative_to(base).as_posix())
    return {name for name in found if not name.startswith(NOT_OF_SITES)}


def purposes() -> set[str]:
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "release":
                assert isinstance(node.args[0], ast.Constant), path
                found.add(str(node.args[0].value))
    return found


def test_every_kind_of_message_and_every_field_of_its_reply_is_declared() -> None:
    assert set(handlers()) == set(declared.HEADERS) == set(declared.ARRAYS) == set(declared.REPLIES)
    assert {kind: fields(model) for kind, model in declared.REPLIES.items()} == {
        kind: set(listed) for kind, listed in declared.HEADERS.items()
    }
    assert set(Refusal.model_fields) == {"code", "field"}


def test_every_release_of_a_new_hospital_is_declared() -> None:
    assert purposes() == set(declared.OWN_RELEASES)


def test_every_place_that_draws_noise_has_a_part_of_the_audit() -> None:
    assert drawing_files() == set(NOISE)
    assert {part for part in NOISE.values() if not hasattr(unseen, part)} <= PARTS


def test_every_declared_field_names_parts_that_exist() -> None:
    listed = [*declared.HEADERS.values(), *declared.ARRAYS.values(), declared.METRICS]
    named = {
        part
        for fields_of in listed
        for each in fields_of.values()
        for part in each.looked_at.split(", ")
    }
    assert named | set(declared.OWN_RELEASES.values()) <= PARTS
