"""What `fl-dpbayes init` writes: a complete scenario for one's own table or images, to be read."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fl_dpbayes.commands.column_decisions import aligned_lines
from fl_dpbayes.commands.default_settings import DEFAULTS
from fl_dpbayes.commands.own_images import IMAGE_LINES, describe_images
from fl_dpbayes.commands.own_table import describe_table
from fl_dpbayes.commands.scenario_draft import (
    DataChoices,
    DataDescription,
    proposed_delta,
    toml_value,
)
from fl_dpbayes.config import load_scenario, site_name
from fl_dpbayes.errors import UserError
from fl_dpbayes.files import write_atomically
from fl_dpbayes.files.templates import templates


@dataclass(frozen=True)
class Proposal:
    """What a written scenario proposes, in words for who asked for it.

    Attributes:
        decisions: What each column of a table is used as, a line each.
        notes: Those lines that nobody should miss.
        summary: What was written, and what to type next.
    """

    decisions: Sequence[str]
    notes: Sequence[str]
    summary: str


def propose_scenario(choices: DataChoices, out: Path | None) -> Proposal:
    """Write a commented scenario for tables or images, after a look at them on this machine.

    Args:
        choices: Where the data lie, and what their columns are.
        out: The file to write; None: the data's name with .toml.

    Returns:
        What was decided, to be told.

    Raises:
        UserError: If the data or a column cannot be used, or the file exists.
    """
    first_path = choices.paths[0]
    out = Path(f"{first_path.stem}.toml") if out is None else out
    if first_path.is_dir():
        description = describe_images(choices)
        text = _filled_template(description, out)
        for table_line, image_line in IMAGE_LINES.items():
            text = text.replace(table_line, image_line)
    else:
        description = describe_table(choices)
        text = _filled_template(description, out)
    # After the look at the data: who mistyped a column is told that first.
    if out.exists():
        raise UserError(f"{out} exists already: give another name by --out, nothing is overwritten")
    write_atomically(out, text)
    load_scenario(str(out))
    trained = sum(proposed.role == "train" for proposed in description.sites)
    notable = [row for row in description.decisions if not row.is_routine]
    return Proposal(
        decisions=aligned_lines(description.decisions),
        notes=aligned_lines(notable),
        summary=(
            f"wrote {out}: {trained} hospitals train, {len(description.sites) - trained} held "
            f"out, {description.summary}; read it, then:  fl-dpbayes simulate {out}"
        ),
    )


def _filled_template(description: DataDescription, out: Path) -> str:
    folder = out.resolve().parent
    paths = [os.path.relpath(path.resolve(), folder) for path in description.paths]
    site_tables = [
        f"[sites.{json.dumps(site.name)}]   # {site.units} {description.unit}s\n"
        f'role = "{site.role}"\n'
        for site in description.sites
    ]
    return templates("init")["scenario.toml"].format(
        file=out.name,
        path=toml_value(paths[0] if len(paths) == 1 else paths),
        **DEFAULTS.written(description.clip_norm),
        name=json.dumps(site_name(out.stem) or "own"),
        description=toml_value(f"{description.label} at {len(description.sites)} hospitals"),
        data="".join(f"{line}\n" for line in description.data_lines),
        source="\n".join(description.source_lines),
        unit=description.unit,
        delta=proposed_delta(max(site.units for site in description.sites)),
        sites="".join(site_tables),
    )
