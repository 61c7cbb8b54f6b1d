"""What `fl-dpbayes site init` writes: a hospital's site file, from what the coordinator's scenario says of records."""

import difflib
import math
import os
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from fl_dpbayes.commands.init_scenario import toml_value
from fl_dpbayes.config import (
    Scenario,
    SiteFile,
    Source,
    Table,
    apply_overrides,
    outside_text,
    read_own_site_file,
    read_record,
    scenario_content,
    site_plan,
)
from fl_dpbayes.config.record_schema import record_schema
from fl_dpbayes.data.sources.table import read_table
from fl_dpbayes.errors import UserError
from fl_dpbayes.files.templates import templates
from fl_dpbayes.hospital.check import data_findings
from fl_dpbayes.hospital.findings import show
from fl_dpbayes.hospital.keys import write_new
from fl_dpbayes.hospital.ledger import create_ledger
from fl_dpbayes.hospital.second_run import second_run


class Question(NamedTuple):
    """A question of `site init`: the option that answers it too, the words, and what is proposed, if anything is."""

    option: str
    words: str
    proposed: str | None = None


# For so long a site answers without another look at its file.
LIFE = timedelta(days=365)
# Answers a question by its option, or by who sits at the keyboard.
Ask = Callable[[Question], str]


def init_site(out: Path, ask: Ask, console: Console) -> int:
    """Ask what a site's file must say, write it, check the records, and make snapshot and ledger.

    Nothing is overwritten. Returns the exit status: 1 if the records must be put right first; the
    ledger is then not made. Raises UserError if an answer cannot be used, or the file exists.
    """
    if out.exists():
        raise UserError(f"{out} exists already: give another name, nothing is overwritten")
    given = ask(Question("scenario", "The coordinator's scenario file"))
    data = Path(ask(Question("data", "File (CSV, Parquet) or folder of this site's records")))
    scenario = coordinators_scenario(given, data.resolve())
    names = ", ".join(scenario.sites)[:200]
    name = ask(Question("name", f"This site's name, as the coordinator has it ({names})"))
    if name not in scenario.sites:
        raise UserError(
            f"--name {name}: the scenario's sites are {names}: choose one, or ask the coordinator"
        )
    trains, privacy = scenario.sites[name].role == "train", scenario.privacy
    test = scenario.data.test_fraction if trains else 1.0
    kept = scenario.recalibration.fraction if trains and scenario.recalibration else 0.0
    source, count = _own_columns(scenario.data.source, ask)
    near = None if count is None else _rounded(count * (1 - test - kept) if trains else count)
    # It stands in comments, where a line end would begin a key.
    unit = outside_text(source.unit)
    what = f"{unit}s that {'train' if trains else 'are tested'} here"
    units = ask(Question("units", f"A round, public number of the {what}", near))
    epsilon = ask(
        Question("epsilon", "The most epsilon that all runs may ever spend", f"{privacy.epsilon:g}")
    )
    if trains and units.isdecimal() and int(units) > 0 and _is_budget(epsilon):
        show([second_run(scenario, int(units), float(epsilon))], console)
    runs = ask(Question("runs", "How many runs of this scenario are planned, for good", "1"))
    witness = ask(
        Question(
            "witness", "The ledger's second place, best on another disk", f"witness/{name}.json"
        )
    )
    evaluation = ask(
        Question("evaluation", "Test results may leave: none, noised or public", "none")
    )
    superlink = ask(Question("superlink", "The coordinator's server, host:port (empty: later)", ""))
    wanted = (
        f"   # this scenario asks for {toml_value(scenario.named_code)}"
        if scenario.named_code
        else ""
    )
    forms = templates("site")
    text = forms["site.toml"].format(
        file=out.name,
        scenario=scenario.name,
        name=toml_value(name),
        role=toml_value(scenario.sites[name].role),
        units=units,
        unit=unit,
        what=what,
        source=_source_lines(source, out.resolve().parent),
        snapshot=toml_value(f"ledger/{name}.records.npz"),
        test=test,
        kept=kept,
        key=secrets.token_hex(16),
        ledger=toml_value(f"ledger/{name}.sqlite"),
        witness=toml_value(witness),
        cohort=toml_value(f"{scenario.name} {name}"),
        epsilon=epsilon,
        delta=privacy.delta,
        runs=runs,
        models=toml_value([scenario.model.kind]),
        expires=(datetime.now(UTC).date() + LIFE).isoformat(),
        adjacency=privacy.adjacency,
        run_epsilon=privacy.epsilon,
        clip_norm=privacy.clip_norm,
        steps=site_plan(scenario, 1).total_steps,
        evaluation=toml_value(evaluation),
        wanted=wanted,
    )
    if superlink:
        text += forms["connection.toml"].format(superlink=toml_value(superlink))
    here = out.resolve().parent
    for path in (
        here / f"ledger/{name}.records.npz",
        here / f"ledger/{name}.sqlite",
        here / witness,
    ):
        if path.exists():
            raise UserError(
                f"{path} is there already, of a site that was made before: nothing is made "
                "or overwritten"
            )
    # It holds the split's key.
    write_new(out, text.encode(), 0o600)
    try:
        site_file = read_own_site_file(out)
    except UserError:
        out.unlink()
        raise
    console.print(f"wrote {out}; read it", markup=False, soft_wrap=True)
    if show(data_findings(site_file), console):
        console.print(
            f"correct what says FAIL, then:  fl-dpbayes site check {out}",
            markup=False,
            soft_wrap=True,
        )
        return 1
    create_ledger(out, console)
    return 0


def coordinators_scenario(given: str, data: Path, overrides: Sequence[str] = ()) -> Scenario:
    """Read the coordinator's scenario with this site's records in the place of its own.

    Its constants are public.
    """
    content = scenario_content(given)
    apply_overrides(content, overrides)
    source = content.get("data", {}).get("source")
    if not isinstance(source, dict) or source.get("kind") not in ("table", "images", "arrays"):
        raise UserError(
            f"--scenario {given}: data.source is no table, images or arrays, of which a "
            "site has its own"
        )
    source["path"] = str(data)
    content["data"]["source"] = {
        key: source[key] for key in source if key not in ("site_column", "site_pattern")
    }
    scenario = read_record(Scenario, content, f"scenario {given!r}")
    if scenario.data.source.looked_at:
        said = (
            "its constants are 'from_records': what is computed from patients is a release. Ask "
            "the coordinator"
        )
        raise UserError(
            f"--scenario {given}: {said} for centers, scales, missing and categories known "
            "without them"
        )
    if scenario.privacy.kind == "none":
        raise UserError(
            f"--scenario {given}: privacy.kind is 'none': no hospital can take part in it"
        )
    return scenario


def own_scenario(given: str, own: SiteFile, path: Path) -> Scenario:
    """Read the coordinator's scenario for a site that has its file already, `path`.

    UserError if the two differ.
    """
    place = getattr(own.source, "path", None)
    if place is None:
        raise UserError(
            f"site file {path}: a site with records of its own can take part, this has none"
        )
    scenario = coordinators_scenario(given, place if isinstance(place, Path) else place[0])
    if other := record_schema(scenario.data.source).differences(record_schema(own.source)):
        raise UserError(
            f"site file {path}: {', '.join(other)} not as in {given}: take over what it says"
        )
    return scenario


def _own_columns(source: Source, ask: Ask) -> tuple[Source, int | None]:
    """Check the names of a table's columns against the coordinator's.

    Return the source, and how many units it has.
    """
    if not isinstance(source, Table):
        return source, None
    unit = ask(
        Question(
            "unit", "The column of patients (empty: each row is one)", source.unit_column or ""
        )
    )
    source = source.model_copy(update={"unit_column": unit or None})
    table = read_table(source.path, source.text_columns)
    for name in dict.fromkeys((*source.feature_columns, source.label, *source.text_columns)):
        if name not in table.columns:
            near = difflib.get_close_matches(name, map(str, table.columns), 1)
            hint = f": rename {near[0]!r}?" if near else ": rename the column that is meant"
            raise UserError(f"--data {source.place}: no column is called {name!r}{hint}")
    return source, table[unit].nunique() if unit else len(table)


def _is_budget(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def _source_lines(source: Source, folder: Path) -> str:
    here = source.with_place(lambda place: Path(os.path.relpath(place, folder)))
    values = here.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return "\n".join(
        f"{key} = {toml_value(value)}"
        for key, value in {"kind": source.kind, **values}.items()
        if value
    )


def _rounded(units: float) -> str:
    step = 10 ** max(len(str(int(units))) - 2, 0)
    return str(int(units) // step * step)
