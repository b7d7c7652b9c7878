"""`holdfast checkpoint`: ask a running job for one, and look after those that are in a directory."""

import click

from holdfast.cli.commands.checkpointfiles import ls, prune, show, verify
from holdfast.cli.commands.checkpointvalues import convert, diff
from holdfast.cli.commands.intervene import take
from holdfast.cli.target import Program

_TAKE = "take"
_HELP = ("-h", "--help")


class CheckpointGroup(click.Group):
    """Without the name of a subcommand it is `take`: what is needed most in a hurry needs the fewest words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in (*self.list_commands(ctx), *_HELP))
        return super().parse_args(ctx, args if is_named else [_TAKE, *args])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """kubectl's plugin reads no files of this machine."""
        return [_TAKE] if ctx.find_root().obj is Program.KUBECTL else list(self.commands)


@click.group(cls=CheckpointGroup)
def checkpoint() -> None:
    """Take a checkpoint of a job soon, or look after those in a directory.

    `holdfast checkpoint JOB` is `holdfast checkpoint take JOB`.
    """


for _command in (take, ls, show, verify, diff, convert, prune):
    checkpoint.add_command(_command)
