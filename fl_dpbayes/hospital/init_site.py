"""What `fl-dpbayes site init` writes: a hospital's site file.

What records look like comes from the coordinator's scenario; the rest is asked.
"""

import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from rich.console import Console

from fl_dpbayes.commands.scenario_draft import toml_value
from fl_dpbayes.config import (
    FileSource,
    Scenario,
    SiteFile,
    Source,
    Table,
    apply_overrides,
    near_names,
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
from fl_dpbayes.hospital.check import findings_of
from fl_dpbayes.hospital.findings import say, show
from fl_dpbayes.hospital.keys import write_new
from fl_dpbayes.hospital.ledger import create_ledger
from fl_dpbayes.hospital.second_run import second_run

# For so long a site answers without another look at its file.
LIFE = timedelta(days=365)


class Ask(Protocol):
    """Answers a question by the command's option, or by who sits at the keyboard."""

    def __call__(self, option: str, words: str, proposed: str | None = None) -> str:
        """Ask in these words; None is proposed where a person must answer."""


@dataclass(frozen=True)
class SiteDraft:
    """What the scenario and the answers say of a new site.

    Attributes:
        scenario: The coordinator's, with this site's records as its source.
        name: The site's, as the scenario has it.
        source: The site's records, with its own column of patients.
        purpose: The kind of units, and whether they train or are tested.
        units: A round, public number of them.
        epsilon: The most that all runs may ever spend.
        runs: How many runs are planned.
        witness: The ledger's second place.
        evaluation: How test results may leave: none, noised or public.
        superlink: The coordinator's server, host:port; empty if not known yet.
    """

    scenario: Scenario
    name: str
    source: Source
    purpose: str
    units: str
    epsilon: str
    runs: str
    witness: str
    evaluation: str
    superlink: str

    @property
    def snapshot(self) -> str:
        """Where the snapshot of the records will lie, beside the site file."""
        return f"ledger/{self.name}.records.npz"

    @property
    def ledger(self) -> str:
        """Where the ledger will lie, beside the site file."""
        return f"ledger/{self.name}.sqlite"


def init_site(out: Path, ask: Ask, console: Console) -> int:
    """Ask what a site's file must say, write it, check the records, and make snapshot and ledger.

    Nothing is overwritten. The ledger is not made while the records must be put right.

    Args:
        out: The site file to write.
        ask: Answers a question.
        console: Where it is told.

    Returns:
        The exit status: 1 if the records must be put right first.

    Raises:
        UserError: If an answer cannot be used, or a file exists.
    """
    if out.exists():
        raise UserError(f"{out} exists already: give another name, nothing is overwritten")
    draft = _ask_draft(ask, console)
    folder = out.resolve().parent
    content = _site_file_text(draft, out.name, folder)
    for path in (draft.snapshot, draft.ledger, draft.witness):
        if (folder / path).exists():
            raise UserError(
                f"{folder / path} is there already, of a site that was made before: nothing is "
                "made or overwritten"
            )
    # It holds the split's key.
    write_new(out, content.encode(), 0o600)
    try:
        site_file = read_own_site_file(out)
    except UserError:
        out.unlink()
        raise
    say(console, f"wrote {out}; read it")
    if show(findings_of(out, site_file, ["data"]), console):
        say(console, f"correct what says FAIL, then:  fl-dpbayes site check {out}")
        return 1
    create_ledger(out, console)
    return 0


def _ask_draft(ask: Ask, console: Console) -> SiteDraft:
    """Ask everything that the scenario does not say; tell what a second run would cost."""
    scenario_name = ask("scenario", "The coordinator's scenario file")
    data = Path(ask("data", "File (CSV, Parquet) or folder of this site's records"))
    scenario = coordinators_scenario(scenario_name, data.resolve())
    name = _ask_name(scenario, ask)
    trains = scenario.sites[name].role == "train"
    source, unit_count = _own_columns(scenario.data.source, ask)
    # The unit's name stands in comments, where a line end would begin a key.
    purpose = f"{outside_text(source.unit)}s that {'train' if trains else 'are tested'} here"
    proposed_units = None
    if unit_count is not None:
        proposed_units = _proposed_units(scenario, trains, unit_count)
    units = ask("units", f"A round, public number of the {purpose}", proposed_units)
    epsilon = ask(
        option="epsilon",
        words="The most epsilon that all runs may ever spend",
        proposed=f"{scenario.privacy.epsilon:g}",
    )
    if trains and units.isdecimal() and int(units) > 0 and _is_budget(epsilon):
        show([second_run(scenario, int(units), float(epsilon))], console)
    runs = ask("runs", "How many runs of this scenario are planned, for good", "1")
    witness = ask(
        option="witness",
        words="The ledger's second place, best on another disk",
        proposed=f"witness/{name}.json",
    )
    evaluation = ask("evaluation", "Test results may leave: none, noised or public", "none")
    superlink = ask("superlink", "The coordinator's server, host:port (empty: later)", "")
    return SiteDraft(
        scenario=scenario,
        name=name,
        source=source,
        purpose=purpose,
        units=units,
        epsilon=epsilon,
        runs=runs,
        witness=witness,
        evaluation=evaluation,
        superlink=superlink,
    )


def _ask_name(scenario: Scenario, ask: Ask) -> str:
    names = ", ".join(scenario.sites)[:200]
    name = ask("name", f"This site's name, as the coordinator has it ({names})")
    if name not in scenario.sites:
        raise UserError(
            f"--name {name}: the scenario's sites are {names}: choose one, or ask the coordinator"
        )
    return name


def _site_file_text(draft: SiteDraft, file_name: str, folder: Path) -> str:
    """Fill in the template of a site file, which will lie in a folder."""
    scenario = draft.scenario
    privacy = scenario.privacy
    trains = scenario.sites[draft.name].role == "train"
    named_code_note = ""
    if scenario.named_code:
        named_code_note = f"   # this scenario asks for {toml_value(scenario.named_code)}"
    forms = templates("site")
    text = forms["site.toml"].format(
        file=file_name,
        scenario=scenario.name,
        name=toml_value(draft.name),
        role=toml_value(scenario.sites[draft.name].role),
        units=draft.units,
        unit=outside_text(draft.source.unit),
        what=draft.purpose,
        source=_source_lines(draft.source, folder),
        snapshot=toml_value(draft.snapshot),
        test=_test_fraction(scenario, trains),
        kept=_recalibration_fraction(scenario, trains),
        key=secrets.token_hex(16),
        ledger=toml_value(draft.ledger),
        witness=toml_value(draft.witness),
        cohort=toml_value(f"{scenario.name} {draft.name}"),
        epsilon=draft.epsilon,
        delta=privacy.delta,
        runs=draft.runs,
        models=toml_value([scenario.model.kind]),
        expires=(datetime.now(UTC).date() + LIFE).isoformat(),
        adjacency=privacy.adjacency,
        run_epsilon=privacy.epsilon,
        clip_norm=privacy.clip_norm,
        steps=site_plan(scenario, 1).total_steps,
        evaluation=toml_value(draft.evaluation),
        wanted=named_code_note,
    )
    if draft.superlink:
        text += forms["connection.toml"].format(superlink=toml_value(draft.superlink))
    return text


def coordinators_scenario(
    scenario_name: str, data: Path, overrides: Sequence[str] = ()
) -> Scenario:
    """Read the coordinator's scenario with this site's records in the place of its own.

    Args:
        scenario_name: The scenario file; its constants are public.
        data: File or folder of this site's records.
        overrides: Keys and values, as `resources.start_nodes=2`.

    Returns:
        The scenario, whose source is this site's.

    Raises:
        UserError: If no hospital can take part in it.
    """
    content = scenario_content(scenario_name)
    apply_overrides(content, overrides)
    source = content.get("data", {}).get("source")
    if not isinstance(source, dict) or source.get("kind") not in ("table", "images", "arrays"):
        raise UserError(
            f"--scenario {scenario_name}: data.source is no table, images or arrays, of which a "
            "site has its own"
        )
    source["path"] = str(data)
    content["data"]["source"] = {
        key: source[key] for key in source if key not in ("site_column", "site_pattern")
    }
    scenario = read_record(Scenario, content, f"scenario {scenario_name!r}")
    if scenario.data.source.looked_at:
        raise UserError(
            f"--scenario {scenario_name}: its constants are 'from_records': what is computed from "
            "patients is a release. Ask the coordinator for centers, scales, missing and "
            "categories known without them"
        )
    if not scenario.sampler.is_private:
        raise UserError(
            f"--scenario {scenario_name}: sampler.kind {scenario.sampler.kind!r} is not private: "
            "no hospital can take part in it"
        )
    return scenario


def own_scenario(scenario_name: str, site: SiteFile, path: Path) -> Scenario:
    """Read the coordinator's scenario for a site that has its file already.

    Args:
        scenario_name: The scenario file.
        site: What the site file says.
        path: The site file.

    Returns:
        The scenario, whose source is this site's.

    Raises:
        UserError: If the two differ in their records, or the site has none of its own.
    """
    if not isinstance(site.source, FileSource) or site.source.path is None:
        raise UserError(
            f"site file {path}: a site with records of its own can take part, this has none"
        )
    scenario = coordinators_scenario(scenario_name, site.source.places[0])
    differences = record_schema(scenario.data.source).differences(record_schema(site.source))
    if differences:
        raise UserError(
            f"site file {path}: {', '.join(differences)} not as in {scenario_name}: take over "
            "what it says"
        )
    return scenario


def _own_columns(source: Source, ask: Ask) -> tuple[Source, int | None]:
    """Check the names of a table's columns; return the source, and how many units it has."""
    if not isinstance(source, Table):
        return source, None
    unit_column = ask(
        option="unit",
        words="The column of patients (empty: each row is one)",
        proposed=source.unit_column or "",
    )
    source = source.model_copy(update={"unit_column": unit_column or None})
    table = read_table(source.path, source.text_columns)
    for name in dict.fromkeys((*source.feature_columns, source.label, *source.text_columns)):
        if name not in table.columns:
            similar = near_names(name, table.columns)
            hint = f": rename {similar[0]!r}?" if similar else ": rename the column that is meant"
            raise UserError(f"--data {source.place}: no column is called {name!r}{hint}")
    return source, table[unit_column].nunique() if unit_column else len(table)


def _proposed_units(scenario: Scenario, trains: bool, unit_count: int) -> str:
    """Propose a round number of the units that train; of all, where none does."""
    if not trains:
        return _rounded(unit_count)
    test = _test_fraction(scenario, trains)
    recalibration = _recalibration_fraction(scenario, trains)
    return _rounded(unit_count * (1 - test - recalibration))


def _is_budget(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def _source_lines(source: Source, folder: Path) -> str:
    relative = source.with_place(lambda place: Path(os.path.relpath(place, folder)))
    values = relative.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    lines = [
        f"{key} = {toml_value(value)}"
        for key, value in {"kind": source.kind, **values}.items()
        if value
    ]
    return "\n".join(lines)


def _rounded(units: float) -> str:
    """Keep the two leading digits of a number of units, as their exact number is not public."""
    step = 10 ** max(len(str(int(units))) - 2, 0)
    return str(int(units) // step * step)


def _test_fraction(scenario: Scenario, trains: bool) -> float:
    """Return the fraction of its units on which a site tests."""
    return scenario.data.test_fraction if trains else 1.0


def _recalibration_fraction(scenario: Scenario, trains: bool) -> float:
    """Return the fraction of its units on which a site recalibrates."""
    return scenario.recalibration.fraction if trains and scenario.recalibration else 0.0
