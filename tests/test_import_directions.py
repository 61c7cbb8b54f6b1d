"""Imports run one way; only the composition root knows the apps, and only the apps know Flower."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = [
    {"protocol", "schedules", "privacy", "errors"},
    {"storage"},
    {"data", "models"},
    {"gradients"},
    {"samplers"},
    {"posterior"},
    {"aggregation"},
    {"calibration"},
    {"report"},
]
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
ROOMS = sorted(RANK)


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def files_of(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_earlier_rooms(room: str) -> None:
    files = files_of(f"fl_dpbayes/{room}") or [ROOT / "fl_dpbayes" / f"{room}.py"]
    for path in files:
        for module in imported_modules(path):
            parts = module.split(".")
            if parts[0] == "fl_dpbayes" and len(parts) > 1 and parts[1] in RANK and parts[1] != room:
                assert RANK[parts[1]] <= RANK[room], f"{path.name} imports {module}"


def test_protocol_and_schedules_and_privacy_stand_alone() -> None:
    for room, allowed in {
        "protocol": {"protocol"},
        "schedules": {"schedules", "protocol"},
        "privacy": {"privacy", "schedules", "protocol", "errors"},
    }.items():
        for path in files_of(f"fl_dpbayes/{room}"):
            rooms = {module.split(".")[1] for module in imported_modules(path) if module.startswith("fl_dpbayes.")}
            assert rooms <= allowed, f"{path.name} imports {rooms - allowed}"


@pytest.mark.parametrize("room", ["protocol", "schedules", "privacy", "calibration", "aggregation", "report"])
def test_rooms_without_torch(room: str) -> None:
    heavy = {"torch", "opacus"}
    for path in files_of(f"fl_dpbayes/{room}"):
        assert not {module.split(".")[0] for module in imported_modules(path)} & heavy, path.name


def test_only_the_apps_and_the_engines_know_flower() -> None:
    for path in files_of("fl_dpbayes"):
        if "run" in path.relative_to(ROOT / "fl_dpbayes").parts:
            continue
        assert "flwr" not in {module.split(".")[0] for module in imported_modules(path)}, path.name


def test_apps_never_import_each_other_nor_the_composition_root() -> None:
    for folder, other in (("clients", "server"), ("server", "clients")):
        for path in files_of(folder):
            modules = imported_modules(path)
            assert other not in {module.split(".")[0] for module in modules}, path.name
            assert not [m for m in modules if m.startswith(("fl_dpbayes.run", "fl_dpbayes.cli"))], path.name


def test_nothing_imports_the_composition_root_or_the_apps() -> None:
    for path in files_of("fl_dpbayes"):
        if "run" in path.relative_to(ROOT / "fl_dpbayes").parts or path.name == "cli.py":
            continue
        modules = imported_modules(path)
        assert not [m for m in modules if m.startswith(("fl_dpbayes.run", "fl_dpbayes.cli"))], path.name
        assert not {module.split(".")[0] for module in modules} & {"clients", "server"}, path.name
