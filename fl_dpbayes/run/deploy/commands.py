"""The commands `fl-dpbayes deploy ...` and `fl-dpbayes provision`: what a coordinator does for a real federation."""

import typer

deploy = typer.Typer(help="A run at real sites: start it, look at it, go on with it.", no_args_is_help=True)
