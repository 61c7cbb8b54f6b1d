"""The commands `fl-dpbayes site ...`: what a hospital does at its own site.

Heavy imports wait until one is used.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import click
import typer
from click import Choice
from rich.console import Console
from typer import Argument, Option

console = Console()
site = typer.Typer(help="What a hospital does at its own site.", no_args_is_help=True)
ledger = typer.Typer(
    help="Make a site's privacy ledger, look into it, repair its second place.",
    no_args_is_help=True,
)
audit = typer.Typer(help="Check a site's audit log.", no_args_is_help=True)
site.add_typer(ledger, name="ledger")
site.add_typer(audit, name="audit")
SiteFileArgument = Annotated[Path, Argument(help="The site file.")]
Release = Choice(["none", "noised", "public"])
Yes = Annotated[bool, Option("--yes", help="Do not ask.")]


@site.command(
    "init",
    help=(
        "Ask what a site must say, write its commented file, check its records, and make "
        "snapshot and ledger."
    ),
    epilog="Example: fl-dpbayes site init north.toml --scenario trial.toml --data patients.csv",
)
def site_init(
    out: Annotated[Path, Argument(help="The site file to write.")] = Path("site.toml"),
    scenario: Annotated[str | None, Option(help="The coordinator's scenario file.")] = None,
    data: Annotated[str | None, Option(help="File or folder of this site's records.")] = None,
    name: Annotated[str | None, Option(help="The site's name, as the coordinator has it.")] = None,
    unit: Annotated[
        str | None, Option("--unit", "--patient", help="The column of patients; empty: none.")
    ] = None,
    units: Annotated[
        int | None, Option(min=1, help="A round number of patients that train here; public.")
    ] = None,
    epsilon: Annotated[
        float | None, Option(min=0, help="The most epsilon that all runs may ever spend.")
    ] = None,
    runs: Annotated[
        int | None, Option(min=1, help="Runs of this scenario that are planned; for good.")
    ] = None,
    witness: Annotated[
        str | None, Option(help="The ledger's second place, best on another disk.")
    ] = None,
    evaluation: Annotated[
        str | None, Option(click_type=Release, help="How test results may leave.")
    ] = None,
    superlink: Annotated[
        str | None, Option(help="The coordinator's server, host:port; empty: later.")
    ] = None,
    yes: Annotated[
        bool, Option("--yes", help="Take what is proposed where no option answers.")
    ] = False,
) -> None:
    """Ask what a site must say, write its file, check its records, make snapshot and ledger."""
    from fl_dpbayes.hospital.init_site import init_site

    context = click.get_current_context()
    answers = context.params
    types = {parameter.name: parameter.type for parameter in context.command.params}

    def ask(option: str, words: str, proposed: str | None = None) -> str:
        answer = answers[option]
        if answer is not None:
            return str(answer)
        if yes and proposed is not None:
            return proposed
        return str(typer.prompt(words, default=proposed, type=types[option]))

    raise typer.Exit(init_site(out=out, ask=ask, console=console))


@site.command("check", epilog="Example: fl-dpbayes site check north.toml")
def site_check(
    site_file: SiteFileArgument,
    only: Annotated[
        str | None, Option(click_type=Choice(["data", "connection"]), help="Check just this.")
    ] = None,
) -> None:
    """Look at a site's data, write the snapshot that runs read, try the way to the server.

    Status 1 on a FAIL.
    """
    from fl_dpbayes.hospital.check import check_site

    raise typer.Exit(check_site(path=site_file, console=console, only=only))


@site.command("dry-run", epilog="Example: fl-dpbayes site dry-run north.toml --scenario trial.toml")
def site_dry_run(
    site_file: SiteFileArgument,
    scenario: Annotated[str, Option(help="The coordinator's scenario file, whose plan is tried.")],
) -> None:
    """Answer one full round on made-up records under the site's policy.

    The ledger and the records are not touched.
    """
    from fl_dpbayes.hospital.dry_run import dry_run

    raise typer.Exit(dry_run(path=site_file, scenario_name=scenario, console=console))


@site.command(epilog="Example: fl-dpbayes site approve north.toml DIGEST")
def approve(
    site_file: SiteFileArgument,
    digest: Annotated[
        str | None, Argument(help="Of a bundle or plan, whole; without: what waits.")
    ] = None,
    scenario: Annotated[
        str | None, Option(help="The coordinator's scenario, whose plans are approved.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Show what a bundle or plan holds and let it run.

    The node goes on, and asks anew at every message.
    """
    from fl_dpbayes.hospital.approve import approve_digest, approve_scenario, show_waiting

    confirm = _confirm_unless(yes)
    if scenario is not None:
        approve_scenario(
            site_file=site_file, scenario_name=scenario, console=console, confirm=confirm
        )
    if digest is not None:
        approve_digest(site_file=site_file, digest=digest, console=console, confirm=confirm)
    if digest is None and scenario is None:
        show_waiting(site_file, console)


def _confirm_unless(yes: bool) -> Callable[[str], bool]:
    """Ask at the keyboard, unless the option --yes has answered."""
    return lambda question: yes or typer.confirm(question)


@site.command(
    "start",
    help=(
        "Start the site's node: only approved bundles run, and a Flower that does not ask "
        "starts no node."
    ),
    epilog="Example: fl-dpbayes site start north.toml",
)
def site_start(site_file: SiteFileArgument) -> None:
    """Start the site's node."""
    from fl_dpbayes.hospital.node import start_node

    start_node(site_file)


@site.command(
    "app",
    help=(
        "Start the process that runs the app for the node, best as another user; it never "
        "sees the node's key."
    ),
    epilog="Example: fl-dpbayes site app north.toml",
)
def site_app(site_file: SiteFileArgument) -> None:
    """Start the process that runs the app for the node."""
    from fl_dpbayes.hospital.node import start_app

    start_app(site_file)


@site.command("keys", epilog="Example: fl-dpbayes site keys north.toml")
def site_keys(site_file: SiteFileArgument) -> None:
    """Make the node's key here, once; only the public part goes to the coordinator."""
    from fl_dpbayes.hospital.keys import make_keys

    make_keys(site_file, console)


@ledger.command("create", epilog="Example: fl-dpbayes site ledger create north.toml")
def ledger_create(site_file: SiteFileArgument) -> None:
    """Make a site's ledger, before its first request; overwrites nothing."""
    from fl_dpbayes.hospital.ledger import create_ledger

    create_ledger(site_file, console)


@ledger.command(
    "repair",
    help=(
        "Make a lost second place anew, or accept that the ledger was moved; a ledger that "
        "is behind stays refused."
    ),
    epilog="Example: fl-dpbayes site ledger repair north.toml",
)
def ledger_repair(site_file: SiteFileArgument) -> None:
    """Make a lost second place anew."""
    from fl_dpbayes.hospital.ledger import repair_ledger

    repair_ledger(site_file, console)


@ledger.command("show", epilog="Example: fl-dpbayes site ledger show north.toml")
def ledger_show(site_file: SiteFileArgument) -> None:
    """Show what a site has spent, reservation by reservation."""
    from fl_dpbayes.hospital.ledger import show_ledger

    show_ledger(site_file, console)


@audit.command(
    "verify",
    help=(
        "Check the audit log's chain, and the log and the ledger against each other; status "
        "1 if something is missing."
    ),
    epilog="Example: fl-dpbayes site audit verify north.toml",
)
def audit_verify(site_file: SiteFileArgument) -> None:
    """Check the audit log's chain, and the log and the ledger against each other."""
    from fl_dpbayes.hospital.audit import verify_audit_log

    raise typer.Exit(verify_audit_log(site_file, console))


@ledger.command("verify", epilog="Example: fl-dpbayes site ledger verify north.toml")
def ledger_verify(site_file: SiteFileArgument) -> None:
    """Check a ledger's hash chain and sums; status 1 if it does not hold."""
    from fl_dpbayes.hospital.ledger import verify_ledger

    raise typer.Exit(verify_ledger(site_file, console))


@ledger.command("lower", epilog="Example: fl-dpbayes site ledger lower north.toml 2.5")
def ledger_lower(
    site_file: SiteFileArgument,
    epsilon: Annotated[float, Argument(help="Of each part, from now on.")],
    yes: Yes = False,
) -> None:
    """Lower the epsilon that a cohort may ever spend; for good, and no request raises it."""
    from fl_dpbayes.hospital.ledger import restrict_ledger

    restrict_ledger(
        site_file=site_file, console=console, epsilon=epsilon, confirm=_confirm_unless(yes)
    )


@ledger.command(
    "close",
    help=(
        "Close a cohort, for good: no request on its records is answered again, not even with a "
        "stored reply."
    ),
    epilog="Example: fl-dpbayes site ledger close north.toml",
)
def ledger_close(site_file: SiteFileArgument, yes: Yes = False) -> None:
    """Close a cohort, for good."""
    from fl_dpbayes.hospital.ledger import restrict_ledger

    restrict_ledger(
        site_file=site_file, console=console, epsilon=None, confirm=_confirm_unless(yes)
    )


@ledger.command("export", epilog="Example: fl-dpbayes site ledger export site.toml > ledger.json")
def ledger_export(site_file: SiteFileArgument) -> None:
    """Print a ledger as JSON, for an auditor."""
    from fl_dpbayes.hospital.ledger import export_ledger

    print(json.dumps(export_ledger(site_file), indent=2))


@site.command("statement", epilog="Example: fl-dpbayes site statement north.toml --month 2026-11")
def statement(
    site_file: SiteFileArgument,
    month: Annotated[str, typer.Option(help="Year and month, UTC; this one unless given.")] = "",
) -> None:
    """Say which code runs, what left in a month, what was refused, what it cost.

    Status 1 if something is missing.
    """
    from fl_dpbayes.hospital.statement import print_statement

    raise typer.Exit(print_statement(site_file=site_file, month=month, console=console))
