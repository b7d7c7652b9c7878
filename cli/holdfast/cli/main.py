"""`holdfast`: the one command. Subcommands are imported when they are called, so that reads start at once.

Data goes to stdout, messages go to stderr, and whatever goes wrong ends in one sentence and a documented exit
code (`holdfast.cli.output`).
"""

import importlib
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
from click.shell_completion import CompletionItem, ShellComplete

from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.cli.output import ExitCode, exit_code_of, plain
from holdfast.cli.target import Program


@dataclass(frozen=True)
class Command:
    """Where a subcommand lives, and its line in the help, which must not need the import.

    `extra` installs what its module imports beyond Holdfast's own dependencies.
    """

    target: str
    summary: str
    extra: str = "local"


COMMANDS: Mapping[str, Command] = {
    "run": Command("holdfast.cli.commands.run:run", "Run a job file on this machine, healing what breaks."),
    "slurm": Command(
        "holdfast.cli.commands.slurm:slurm", "Submit a job file to Slurm; it heals in its allocation."
    ),
    "ssh": Command("holdfast.cli.commands.ssh:ssh", "Run a job file on machines that ssh reaches."),
    "demo": Command("holdfast.cli.commands.run:demo", "Train a small model, break it four ways, watch it heal."),
    "launch": Command("holdfast.agent.launch.command:launch", "The elastic launcher of one node.", "agent"),
    "status": Command("holdfast.cli.commands.job:status", "Where a job is."),
    "ranks": Command("holdfast.cli.commands.job:ranks", "Every rank: node, process, step, loss."),
    "nodes": Command("holdfast.cli.commands.job:nodes", "Every node and its GPUs."),
    "logs": Command("holdfast.cli.commands.job:logs", "What the workers wrote, also before a restart."),
    "incidents": Command("holdfast.cli.commands.history:incidents", "What broke, and what was done about it."),
    "why": Command("holdfast.cli.commands.history:why", "The whole story of one incident."),
    "fleet": Command("holdfast.cli.commands.fleet:fleet", "What all jobs fail by, and behind which places."),
    "cost": Command("holdfast.cli.commands.cost:cost", "Where the GPU-hours and the money went."),
    "postmortem": Command("holdfast.cli.commands.postmortem:postmortem", "Write the document about an incident."),
    "rounds": Command("holdfast.cli.commands.rounds:rounds", "What changed between rounds, and what that did."),
    "stacks": Command("holdfast.cli.commands.stacks:stacks", "Where each rank stands now."),
    "flight": Command("holdfast.cli.commands.stacks:flight", "Which rank is behind in its collectives."),
    "profile": Command("holdfast.cli.commands.stacks:profile", "Record some steps of some ranks."),
    "runbook": Command("holdfast.cli.commands.runbook:runbook", "Check what an expert would, for a symptom."),
    "journal": Command("holdfast.cli.commands.history:journal", "Every event that was recorded."),
    "replay": Command("holdfast.cli.commands.history:replay", "Feed the journal to the brain again and compare."),
    "console": Command("holdfast.cli.commands.console:console", "Where the console is, for a browser."),
    "evict": Command("holdfast.cli.commands.intervene:evict", "Take a node out of the job."),
    "return": Command("holdfast.cli.commands.intervene:return_", "Put a node back into service."),
    "self-test": Command("holdfast.cli.commands.intervene:self_test", "Test the devices of a node of the job."),
    "pause": Command("holdfast.cli.commands.intervene:pause", "Stop training and keep everything ready."),
    "resume": Command("holdfast.cli.commands.intervene:resume", "Go on after a pause."),
    "restart": Command("holdfast.cli.commands.intervene:restart", "Start every worker again from a checkpoint."),
    "checkpoint": Command("holdfast.cli.commands.checkpoint:checkpoint", "Take one soon; list, verify, convert."),
    "compare": Command("holdfast.cli.commands.compare:compare", "Two runs: what differs, and from which step on."),
    "bisect": Command("holdfast.cli.commands.compare:bisect", "Train two runs again; name what parts them."),
    "rollback": Command("holdfast.cli.commands.rounds:rollback", "Go back to the code of an earlier round."),
    "rewind": Command("holdfast.cli.commands.intervene:rewind", "Go back to an earlier checkpoint."),
    "resize": Command("holdfast.cli.commands.intervene:resize", "Change how many nodes the job may have."),
    "skip-batches": Command("holdfast.cli.commands.intervene:skip_batches", "Pass over some of the data."),
    "plan": Command(
        "holdfast.cli.commands.plan:plan_command", "Which layout of a model, how fast, how dear, before it runs."
    ),
    "simulate": Command(
        "holdfast.cli.commands.simulate:simulate", "What failures make of a job, under which policy."
    ),
    "doctor": Command("holdfast.cli.commands.doctor:doctor", "Check an installation, or this machine."),
    "probe": Command("holdfast.cli.commands.doctor:probe", "Test the GPUs of this machine."),
    "audit": Command("holdfast.cli.commands.audit:audit", "Probe the model of a script before it trains."),
    "watchdog": Command("holdfast.cli.commands.program:watchdog", "The watchdog: decides."),
    "operator": Command("holdfast.cli.commands.program:operator", "The operator: acts on the cluster."),
    "agent": Command("holdfast.cli.commands.program:agent", "The agent of one node: senses."),
    "completion": Command("holdfast.cli.commands.program:completion", "Completion for a shell."),
    "version": Command("holdfast.cli.commands.program:version", "The version of Holdfast."),
}
SERVICES = frozenset({"watchdog", "operator", "agent"})
"""These have log settings of their own."""
HERE_ONLY = (
    frozenset({"run", "slurm", "ssh", "demo", "launch", "plan", "compare", "bisect", "probe", "audit"}) | SERVICES
)
"""What `kubectl holdfast` leaves out: these run something on this machine, or read its files."""
NO_FILES = 4
"""One of kubectl's directives for completions: do not fall back to file names."""


class LazyGroup(click.Group):
    """A group that knows its subcommands by name and imports one when it is called."""

    def commands_of(self, ctx: click.Context) -> Mapping[str, Command]:
        """Those of the program that was called."""
        if ctx.find_root().obj is not Program.KUBECTL:
            return COMMANDS
        return {name: command for name, command in COMMANDS.items() if name not in HERE_ONLY}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_of(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.commands_of(ctx).get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("holdfast"):
                raise  # a fault of ours: no extra brings it
            fix = f"pip install 'holdfast[{entry.extra}]' adds it"
            raise Unavailable(f"{cmd_name} needs {error.name}, which is not installed here: {fix}") from error
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Without importing every command for its help."""
        named = self.commands_of(ctx).items()
        found = [CompletionItem(name, help=each.summary) for name, each in named if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self.commands_of(ctx).items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show tracebacks and log everything to stderr.")
@click.pass_context
def holdfast(ctx: click.Context, debug: bool) -> None:
    """Keeps large training runs going: detects, decides and heals."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    if ctx.invoked_subcommand not in SERVICES:
        logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, stream=sys.stderr)


def main() -> None:
    """The entry point of the installed script."""
    sys.exit(answer(sys.argv[1:]))


def kubectl_main() -> None:
    """The entry point of `kubectl-holdfast`, which kubectl calls for `kubectl holdfast`."""
    sys.exit(answer(sys.argv[1:], Program.KUBECTL))


def kubectl_completion_main() -> None:
    """The entry point of `kubectl_complete-holdfast`, which kubectl calls with the words typed so far.

    It answers as kubectl's own completion does: one suggestion a line, a tab before its description, then a line
    of a colon and flags. Source: https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/
    """
    try:
        lines = suggestions(sys.argv[1:])
    except Exception:  # a completion that fails must not write into the command line that is being typed
        lines = [f":{NO_FILES}"]
    click.echo("\n".join(lines))


def suggestions(words: Sequence[str]) -> list[str]:
    """The lines that answer `words`, the last of which is unfinished."""
    *before, unfinished = words or [""]
    complete = ShellComplete(holdfast, {"obj": Program.KUBECTL}, Program.KUBECTL.value, "_HOLDFAST_COMPLETE")
    found = complete.get_completions(list(before), unfinished)
    lines = [f"{each.value}\t{each.help}" if each.help else each.value for each in found if each.type == "plain"]
    return [*lines, f":{NO_FILES}"]


def answer(arguments: Sequence[str], program: Program = Program.HOLDFAST) -> int:
    """Run one command line; every way it can end becomes an exit code."""
    is_debugged = "--debug" in arguments[:1]
    try:
        # Completion asks `holdfast` itself, and kubectl its own plugin (`kubectl_completion_main`).
        code = holdfast.main(
            list(arguments),
            prog_name=program.value,
            complete_var="_HOLDFAST_COMPLETE",
            standalone_mode=False,
            obj=program,
        )
        return int(code or ExitCode.OK)
    except click.ClickException as error:
        error.show()
        return ExitCode.INVALID
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone (`| head`); flushing at exit would complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        if is_debugged:
            traceback.print_exc()
        if isinstance(error, HoldfastError):
            click.echo(plain(f"holdfast: {error}"), err=True)
            return exit_code_of(error)
        if isinstance(error, OSError):
            subject = f"{error.filename}: " if error.filename else ""
            click.echo(plain(f"holdfast: {subject}{error.strerror or error}"), err=True)
            return ExitCode.UNAVAILABLE
        # Nobody foresaw it: one sentence, and the traceback where it can be found.
        if not is_debugged:
            with tempfile.NamedTemporaryFile("w", prefix="holdfast-error-", suffix=".log", delete=False) as log:
                traceback.print_exception(error, file=log)
            sentence = f"unexpected {type(error).__name__}: {error}; the traceback is in {log.name}"
            click.echo(plain(f"holdfast: {sentence}"), err=True)
        return ExitCode.FAILED
