"""`holdfast version`."""

import click

from holdfast.cli.exitcode import ExitCode


@click.command()
def version() -> ExitCode:
    """The version of Holdfast that is installed."""
    from importlib.metadata import version as installed

    click.echo(installed("holdfast"))
    return ExitCode.OK
