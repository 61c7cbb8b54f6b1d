"""The files that a command fills in: they stand in `deploy/`, beside the package or inside it."""

import tomllib
from pathlib import Path


def templates(name: str) -> dict[str, str]:
    """Return the files that one end of a federation gets, with marks for what is filled in.

    Args:
        name: Of the end, such as "site".

    Returns:
        The text of each file by its name, the runbook with them.
    """
    package = Path(__file__).parents[1]
    folder = package / "deploy"
    if not folder.is_dir():
        folder = package.parent / "deploy"
    forms = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    runbook = (folder / "README.md").read_text(encoding="utf-8")
    return forms | {"RUNBOOK.md": runbook}
