"""`holdfast completion`."""

import click

from holdfast.api.errors import Unavailable
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.output import remark
from holdfast.cli.target import Program


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> ExitCode:
    """The completion of SHELL: put `source <(holdfast completion bash)` into ~/.bashrc, or the like.

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
