"""The work behind `fl-dpbayes list`."""

from rich.console import Console
from rich.text import Text

from fl_dpbayes.commands.fetch_data import SETS, SHIPPED
from fl_dpbayes.config import (
    STUDY_PREFIX,
    load_study,
    scenario_content,
    shipped_papers,
    shipped_scenarios,
    shipped_studies,
)
from fl_dpbayes.report.terminal_table import terminal_table
from fl_dpbayes.study.study import SCRIPTS


def list_shipped(console: Console) -> None:
    """Print the names of scenarios, studies, papers' tables and data sets, and the command for each."""
    scenarios = {
        name: str(scenario_content(name).get("description", "")) for name in shipped_scenarios()
    }
    known = {
        name.removeprefix(STUDY_PREFIX): load_study(name).scenario for name in shipped_studies()
    }
    studies = {name: str(scenario.get("description", "")) for name, scenario in known.items()}
    papers = {name: load_study(name).paper.source for name in shipped_papers()}  # type: ignore[union-attr]
    papers |= {
        name: f"a script of the source tree: python {script}" for name, script in SCRIPTS.items()
    }
    sets = SHIPPED | {name: f"{found.what}; {found.licence}" for name, found in SETS.items()}
    for command, rows in (
        ("simulate", scenarios),
        ("study", studies),
        ("reproduce", papers),
        ("data fetch", sets),
    ):
        table = terminal_table(f"fl-dpbayes {command} NAME")
        table.add_column("name", no_wrap=True)
        table.add_column()
        for row in rows.items():
            table.add_row(*map(Text, row))
        console.print(table)
