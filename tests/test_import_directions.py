"""Imports run one way through the packages.

Only the composition root knows the apps, and only the apps know Flower.
"""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAYERS = [
    {"errors", "version", "reproducible_products"},
    {"files"},
    {"config"},
    {"protocol", "models", "schedules"},
    {"samplers"},
    {"privacy"},
    {"data"},
    {"posterior", "calibration"},
    # It joins the losses, predictions and sums of the rooms above; those who use it come below.
    {"outcomes"},
    {"report"},
    {"clients", "server"},
    {"engine"},
    {"predict", "study"},
    {"commands"},
    {"api", "audit"},
    {"hospital"},
    {"coordinator"},
    {"cli"},
    {"__main__"},
    {"fl_dpbayes"},
]
# The rooms that start apps, look at what they release, or speak for the command line.
KNOW_FLOWER = {"clients", "server", "engine", "predict", "audit", "api", "hospital", "coordinator"}
COMMANDS = ("fl_dpbayes.cli", "fl_dpbayes.hospital.commands", "fl_dpbayes.coordinator.commands")
WITHOUT_TORCH = {"files", "config", "protocol", "schedules", "privacy", "calibration", "report"}
MOST_PARAMETERS = 8
RANK = {package: rank for rank, packages in enumerate(LAYERS) for package in packages}


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative imports hide the direction"
            found.add(node.module or "")
    return found


def package_of(module: str) -> str:
    """The ranked package: the second part of a library module, the first of an app's.

    The root is ranked last.
    """
    parts = module.split(".")
    return parts[1] if parts[0] == "fl_dpbayes" and len(parts) > 1 else parts[0]


def modules() -> dict[str, Path]:
    paths = [
        path
        for folder in ("fl_dpbayes", "clients", "server")
        for path in (ROOT / folder).rglob("*.py")
    ]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


MODULES = modules()


def test_every_module_is_ranked_and_imports_only_from_before() -> None:
    for module, path in MODULES.items():
        package = package_of(module)
        assert package in RANK, f"{module}: a package that has no rank"
        for imported in imported_modules(path):
            other = package_of(imported)
            # What needs no more than the version may ask the root for it.
            if imported.split(".")[0] in {"fl_dpbayes", "clients", "server"} and other not in (
                package,
                "fl_dpbayes",
            ):
                assert RANK[other] < RANK[package], f"{module} imports {imported}"


def test_root_holds_nothing_but_its_names_and_the_command_line() -> None:
    assert {path.name for path in (ROOT / "fl_dpbayes").glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "cli.py",
        "errors.py",
        "reproducible_products.py",
        "version.py",
    }


def test_rooms_without_torch() -> None:
    for module, path in MODULES.items():
        if package_of(module) in WITHOUT_TORCH:
            assert not {name.split(".")[0] for name in imported_modules(path)} & {
                "torch",
                "opacus",
            }, module


def test_only_the_apps_and_what_runs_them_know_flower() -> None:
    for module, path in MODULES.items():
        if package_of(module) not in KNOW_FLOWER:
            assert "flwr" not in {name.split(".")[0] for name in imported_modules(path)}, module


def imported_files(module: str) -> set[str]:
    """The modules of this project that a file names, at its top or inside a function."""
    imported = set()
    for node in nodes(MODULES[module]):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                imported.add(full if full in MODULES else str(node.module))
    return imported & set(MODULES)


def test_no_file_imports_itself_by_way_of_others() -> None:
    try:
        tuple(
            TopologicalSorter({module: imported_files(module) for module in MODULES}).static_order()
        )
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def long_signatures() -> Iterator[str]:
    for module, path in MODULES.items():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [each.arg for each in [*given.posonlyargs, *given.args, *given.kwonlyargs]]
                names += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
                if len(set(names) - {"self", "cls"}) > MOST_PARAMETERS:
                    yield f"{module}.{node.name}"


def test_no_function_takes_more_parameters_than_a_reader_can_hold_but_commands() -> None:
    assert [name for name in long_signatures() if not name.startswith(COMMANDS)] == []
