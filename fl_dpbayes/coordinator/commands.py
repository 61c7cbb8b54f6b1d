"""The commands `fl-dpbayes deploy ...` and `fl-dpbayes provision`, of a coordinator."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Argument, Option

console = Console()
deploy = typer.Typer(
    help="A run at real sites: start it, look at it, go on with it.", no_args_is_help=True
)


def provision(
    folder: Annotated[
        Path, Argument(help="The folder to make; again: the server's certificate is renewed.")
    ],
    sites: Annotated[str, Option(help="The sites' names, as a,b,c.")],
    host: Annotated[str, Option(help="The name by which hospitals reach the coordinator.")],
    port: Annotated[
        int, Option(min=1, max=65535, help="Where the SuperLink listens, on its own machine.")
    ] = 8443,
) -> None:
    """Make a certificate authority, the server's certificate, and the files of both ends."""
    from fl_dpbayes.coordinator.provision import provision as write_kits

    write_kits(
        folder=folder,
        sites=[name.strip() for name in sites.split(",")],
        host=host,
        port=port,
        console=console,
    )


FolderArgument = Annotated[Path, Argument(help="The run directory.")]


@deploy.command("run", epilog="Example: fl-dpbayes deploy run stroke.toml --out runs/stroke-1")
def deploy_run(
    scenario: Annotated[
        str, Argument(help="Its sites are nodes registered by name; its data are only a schema.")
    ],
    out: Annotated[Path | None, Option(help="The run directory; must be absent or empty.")] = None,
    assignments: Annotated[
        list[str] | None, Option("--set", help="Change a value: key.sub_key=value.")
    ] = None,
    superlink: Annotated[
        str, Option(help="The SuperLink's name in $FLWR_HOME/config.toml.")
    ] = "remote",
    wait: Annotated[
        float, Option(min=1, help="Seconds to wait for the sites that are missing.")
    ] = 600.0,
) -> None:
    """Run a scenario at real sites and follow it; an interrupt ends the following, not the run."""
    from fl_dpbayes.coordinator.deploy import deploy_run as run

    run(
        scenario_name=scenario,
        overrides=assignments or [],
        folder=out,
        superlink=superlink,
        wait=wait,
        console=console,
    )


@deploy.command("status", epilog="Example: fl-dpbayes deploy status runs/stroke-1")
def deploy_status(folder: FolderArgument) -> None:
    """Say who joined, who did not and why, and how far each site is."""
    from fl_dpbayes.coordinator.deploy import deploy_status as status

    status(folder, console)


@deploy.command("resume", epilog="Example: fl-dpbayes deploy resume runs/stroke-1")
def deploy_resume(folder: FolderArgument) -> None:
    """Go on after the last complete round, or follow a run under way.

    What was answered is not charged again.
    """
    from fl_dpbayes.coordinator.deploy import deploy_resume as resume

    resume(folder, console)
