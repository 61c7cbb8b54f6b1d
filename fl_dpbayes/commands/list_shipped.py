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
    """Print what comes with the package, by the command that takes its name."""
    for command, descriptions in shipped_names().items():
        table = terminal_table(f"fl-dpbayes {command} NAME")
        table.add_column("name", no_wrap=True)
        table.add_column()
        for name, description in descriptions.items():
            table.add_row(Text(name), Text(description))
        console.print(table)


def shipped_names() -> dict[str, dict[str, str]]:
    """Return command -> name -> description of scenarios, studies, papers' tables and data sets."""
    scenarios = {
        name: str(scenario_content(name).get("description", "")) for name in shipped_scenarios()
    }
    studies = {}
    for name in shipped_studies():
        description = load_study(name).scenario.get("description", "")
        studies[name.removeprefix(STUDY_PREFIX)] = str(description)
    papers = {}
    for name in shipped_papers():
        paper = load_study(name).paper
        papers[name] = "" if paper is None else paper.source
    for name, script in SCRIPTS.items():
        papers[name] = f"a script of the source tree: python {script}"
    data_sets = dict(SHIPPED)
    for name, data_set in SETS.items():
        data_sets[name] = f"{data_set.description}; {data_set.licence}"
    return {
        "simulate": scenarios,
        "study": studies,
        "reproduce": papers,
        "data fetch": data_sets,
    }
