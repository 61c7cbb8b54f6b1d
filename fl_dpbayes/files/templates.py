"""The files that a command fills in: they stand in `deploy/`, beside the package or inside it."""

import tomllib
from pathlib import Path


def templates(name: str) -> dict[str, str]:
    """Return name -> text of the files that one end gets, with marks for what is filled in, and the runbook."""
    package = Path(__file__).parents[1]
    folder = package / "deploy" if (package / "deploy").is_dir() else package.parent / "deploy"
    forms = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    return forms | {"RUNBOOK.md": (folder / "README.md").read_text(encoding="utf-8")}
