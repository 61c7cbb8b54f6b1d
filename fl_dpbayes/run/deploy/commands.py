"""The commands `fl-dpbayes deploy ...` and `fl-dpbayes provision`: what a coordinator does for a real federation."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Argument, Option

console = Console()
deploy = typer.Typer(help="A run at real sites: start it, look at it, go on with it.", no_args_is_help=True)


def provision(
    folder: Annotated[Path, Argument(help="The folder to make; again: the server's certificate is renewed.")],
    sites: Annotated[str, Option(help="The sites' names, as a,b,c.")],
    host: Annotated[str, Option(help="The name by which hospitals reach the coordinator.")],
    port: Annotated[int, Option(min=1, max=65535, help="Where the SuperLink listens, on its own machine.")] = 8443,
) -> None:
    """Make a certificate authority, the server's certificate, and the files of the coordinator and the hospitals."""
    from fl_dpbayes.run.deploy.provision import provision as run

    run(folder, [name.strip() for name in sites.split(",")], host, port, console)
