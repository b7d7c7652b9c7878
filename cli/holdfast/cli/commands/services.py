"""The long-running parts under `holdfast`: every argument is theirs. Each ends with its own exit codes."""

import importlib
from typing import Any

import click

from holdfast.api.errors import Unavailable
from holdfast.cli.exitcode import ExitCode

PASS_ALL: dict[str, Any] = {"ignore_unknown_options": True, "help_option_names": []}


@click.command(context_settings=PASS_ALL, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def watchdog(arguments: tuple[str, ...]) -> ExitCode:
    """The watchdog, as `python -m holdfast.watchdog`."""
    return _start("watchdog", arguments)


@click.command(context_settings=PASS_ALL, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def operator(arguments: tuple[str, ...]) -> ExitCode:
    """The operator, as `python -m holdfast.operator`."""
    return _start("operator", arguments)


@click.command(context_settings=PASS_ALL, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def agent(arguments: tuple[str, ...]) -> ExitCode:
    """The agent of one node, as `python -m holdfast.agent`."""
    return _start("agent", arguments)


def _start(part: str, arguments: tuple[str, ...]) -> ExitCode:
    """Run a part to its end. Raises Unavailable when what it needs is not installed."""
    try:
        program = importlib.import_module(f"holdfast.{part}.program")
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"the {part} is not installed here ({error}); install it with pip install 'holdfast[{part}]'"
        ) from error
    code = program.main(list(arguments))
    raise SystemExit(code or 0)
