"""`kubectl_complete-holdfast`: kubectl calls it with the words typed so far, the last of them unfinished.

It answers as kubectl's own completion does: one suggestion a line, a tab before its description, then a line of
a colon and flags. Source: https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
"""

import sys
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import ShellComplete

from holdfast.cli.main import holdfast
from holdfast.cli.target import Program

NO_FILES: Final = 4  # of cobra's directives: do not fall back to file names


def suggestions(words: Sequence[str]) -> list[str]:
    """The lines that answer `words`, the last of which is unfinished."""
    *before, unfinished = words or [""]
    complete = ShellComplete(holdfast, {"obj": Program.KUBECTL}, Program.KUBECTL.value, "_HOLDFAST_COMPLETE")
    found = complete.get_completions(list(before), unfinished)
    lines = [f"{each.value}\t{each.help}" if each.help else each.value for each in found if each.type == "plain"]
    return [*lines, f":{NO_FILES}"]


def main() -> None:
    """The entry point of the installed script. Says nothing rather than something wrong."""
    try:
        lines = suggestions(sys.argv[1:])
    except Exception:  # a completion that fails must not write into the command line that is being typed
        lines = [f":{NO_FILES}"]
    click.echo("\n".join(lines))
