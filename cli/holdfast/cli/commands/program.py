"""`holdfast watchdog|operator|agent|completion|version`: the long-running parts, and this program itself."""

import importlib
from typing import Any

import click

from holdfast.api.errors import Unavailable
from holdfast.cli.output import ExitCode, remark
from holdfast.cli.target import Program

# Every argument is the part's own, --help among them. Each ends with its own exit codes.
PASS_ALL: dict[str, Any] = {"ignore_unknown_options": True, "help_option_names": []}


def _part(name: str, summary: str) -> click.Command:
    @click.command(name, help=summary, context_settings=PASS_ALL, add_help_option=False)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def start(arguments: tuple[str, ...]) -> ExitCode:
        """Run the part to its end. Raises Unavailable when what it needs is not installed."""
        try:
            program = importlib.import_module(f"holdfast.{name}.program")
        except ModuleNotFoundError as error:
            raise Unavailable(
                f"the {name} is not installed here ({error}); install it with pip install 'holdfast[{name}]'"
            ) from error
        raise SystemExit(program.main(list(arguments)) or 0)

    return start


watchdog = _part("watchdog", "The watchdog, as `python -m holdfast.watchdog`.")
operator = _part("operator", "The operator, as `python -m holdfast.operator`.")
agent = _part("agent", "The agent of one node, as `python -m holdfast.agent`.")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> ExitCode:
    """Print the completion script for SHELL: put `source <(holdfast completion bash)` into ~/.bashrc, or the like.

    `kubectl holdfast` needs none: kubectl's own completion asks kubectl_complete-holdfast.
    """
    from click.shell_completion import get_completion_class

    root = ctx.find_root()
    if root.obj is Program.KUBECTL:
        remark("kubectl completes its plugins itself, with the program kubectl_complete-holdfast on the PATH")
    kind = get_completion_class(shell)
    if kind is None:
        raise Unavailable(f"this version of click knows no completion for {shell}")
    complete = kind(root.command, {}, "holdfast", "_HOLDFAST_COMPLETE")
    # Not complete.source(): that starts bash to ask its version, which may be another one than the user's.
    click.echo(complete.source_template % complete.source_vars())
    return ExitCode.OK


@click.command()
def version() -> ExitCode:
    """The version of Holdfast that is installed."""
    from importlib.metadata import version as installed

    click.echo(installed("holdfast"))
    return ExitCode.OK
