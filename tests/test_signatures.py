"""No function takes more parameters than a reader can hold; commands, whose options are parameters, are excepted."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST = 7


def long_signatures() -> set[str]:
    found = set()
    for path in (path for folder in ("fl_dpbayes", "clients", "server") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                names = [each.arg for each in [*given.posonlyargs, *given.args, *given.kwonlyargs]]
                names += [each.arg for each in (given.vararg, given.kwarg) if each is not None]
                if len([name for name in names if name not in ("self", "cls")]) > MOST:
                    found.add(f"{path.relative_to(ROOT).as_posix()}:{node.name}")
    return {name for name in found if not name.startswith("fl_dpbayes/cli")}


def test_no_function_takes_more_than_seven_parameters() -> None:
    assert not long_signatures()
