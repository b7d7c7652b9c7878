"""The interventions: what an on-call engineer asks a job for. Each is recorded with its reason."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import click

from holdfast.api.errors import HoldfastError
from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.selftest import TestLevel
from holdfast.cli.output import ExitCode, emit_yaml, plain, remark
from holdfast.cli.site import open_site
from holdfast.cli.target import JobWord, Target, target_options

if TYPE_CHECKING:
    from holdfast.cli.site import JobSource, Site
    from holdfast.cli.watchdogsource import Answer, Document

DEFAULT_TIMEOUT_S = 60.0


class DryRun(StrEnum):
    """As kubectl has it."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


class InterventionCommand(click.Command):
    """A command whose `--dry-run` alone means client, and never takes the next word for its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, ["--dry-run=client" if each == "--dry-run" else each for each in args])


_OPTIONS: Sequence[Callable[[Any], Any]] = (
    click.option("--reason", default="asked for on the command line", show_default=True, help="Why; recorded."),
    click.option(
        "--dry-run",
        type=click.Choice([each.value for each in DryRun]),
        default=DryRun.NONE.value,
        show_default=True,
        help="Do nothing: say what would happen and show the Intervention (client; also --dry-run alone), or "
        "have the API server check it as well.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0),
        default=DEFAULT_TIMEOUT_S,
        show_default=True,
        help="Seconds to wait for the outcome.",
    ),
    click.option("--no-wait", is_flag=True, help="Do not wait for the outcome."),
)


def _intervention(
    action: InterventionAction, word: JobWord, name: str | None = None
) -> Callable[[Callable[..., dict[str, Any]]], click.Command]:
    """Makes a command of a function from the command's words to what an Intervention's spec says of them."""

    def decorate(words_of: Callable[..., dict[str, Any]]) -> click.Command:
        def asked(
            *, target: Target, reason: str, dry_run: str, timeout: float, no_wait: bool, **given: Any
        ) -> ExitCode:
            site = open_site(target)
            source = site.source()
            document = intervention(source.job, action, reason, words_of(**given))
            if dry_run != DryRun.NONE:
                return _show(site, source, document, DryRun(dry_run))
            timeout_s = 0.0 if no_wait else timeout
            return conclude(site.hand_in(document, timeout_s), timeout_s)

        asked.__name__, asked.__doc__ = words_of.__name__, words_of.__doc__
        wrapped: Any = target_options(word)(asked)
        for option in reversed(_OPTIONS):
            wrapped = option(wrapped)
        wrapped.__click_params__ += getattr(words_of, "__click_params__", [])
        return click.command(name or words_of.__name__, cls=InterventionCommand)(wrapped)

    return decorate


@_intervention(InterventionAction.EVICT, JobWord.OPTION)
@click.argument("node")
def evict(node: str) -> dict[str, Any]:
    """Take NODE out of the job; a spare or fewer nodes go on."""
    return {"node": node}


@_intervention(InterventionAction.RETURN, JobWord.OPTION, "return")
@click.argument("node")
def return_(node: str) -> dict[str, Any]:
    """Put NODE, which was avoided, back into service."""
    return {"node": node}


@_intervention(InterventionAction.TEST, JobWord.OPTION, "self-test")
@click.argument("node")
@click.option(
    "--level",
    type=click.Choice([each.value for each in TestLevel]),
    help="How thorough. Without it: full of a node without ranks, else light. A full one takes a node out of the "
    "round: a spare takes its ranks, or training waits.",
)
def self_test(node: str, level: str | None) -> dict[str, Any]:
    """Test the devices of NODE: at once when it has no ranks, else when its workers have next left; with `--level
    full` they leave for it, once a checkpoint is committed.

    Where the job has `startup.links`, the links of a node without ranks follow, to two or three others without
    ranks. Those of a node with ranks are not tested: all others with ranks would have to stop for that.
    """
    return {"node": node} if level is None else {"node": node, "level": level}


@_intervention(InterventionAction.PAUSE, JobWord.ARGUMENT)
def pause() -> dict[str, Any]:
    """Stop training JOB; members stay and wait."""
    return {}


@_intervention(InterventionAction.RESUME, JobWord.ARGUMENT)
def resume() -> dict[str, Any]:
    """Go on training JOB after a pause."""
    return {}


@_intervention(InterventionAction.RESTART, JobWord.ARGUMENT)
@click.option("--fresh", is_flag=True, help="Start over: from step 0, whatever checkpoints there are.")
def restart(fresh: bool) -> dict[str, Any]:
    """Start every worker of JOB again, from the newest checkpoint."""
    return {"fresh": True} if fresh else {}


@_intervention(InterventionAction.CHECKPOINT, JobWord.ARGUMENT)
def take() -> dict[str, Any]:
    """Take a checkpoint of JOB soon."""
    return {}


@_intervention(InterventionAction.REWIND, JobWord.OPTION)
@click.argument("step", type=click.IntRange(min=0))
@click.option("--skip-batches", type=click.IntRange(min=0), default=0, help="Batches to pass over from there.")
@click.option(
    "--learning-rate-scale",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=1.0,
    help="What to multiply the learning rate by from there.",
)
def rewind(step: int, skip_batches: int, learning_rate_scale: float) -> dict[str, Any]:
    """Go back to the newest checkpoint at or before STEP, and go on from there."""
    return {"rewind": {"toStep": step, "skipBatches": skip_batches, "learningRateScale": learning_rate_scale}}


@_intervention(InterventionAction.RESIZE, JobWord.OPTION)
@click.argument("nodes", type=click.IntRange(min=1))
def resize(nodes: int) -> dict[str, Any]:
    """Let the job have NODES nodes at most."""
    return {"nodes": nodes}


@_intervention(InterventionAction.SKIP_BATCHES, JobWord.OPTION, "skip-batches")
@click.argument("batches", type=click.IntRange(min=1))
def skip_batches(batches: int) -> dict[str, Any]:
    """Restore the newest checkpoint and pass over BATCHES batches from there."""
    return {"skipBatches": batches}


def intervention(job: str, action: InterventionAction, reason: str, words: Mapping[str, Any]) -> "Document":
    """The object that asks a job for `action`. Raises InvalidSpec naming every problem."""
    from holdfast.api.interventionspec import read_intervention
    from holdfast.api.metadata import API_VERSION

    namespace, _, name = job.partition("/")
    document = {
        "apiVersion": API_VERSION,
        "kind": "Intervention",
        "metadata": {"generateName": f"{action.lower()}-", "namespace": namespace},
        "spec": {"job": name, "action": action.value, "reason": reason, **words},
    }
    read_intervention(document)
    return document


def conclude(answer: "Answer", timeout_s: float) -> ExitCode:
    """Say what became of it."""
    if answer.state is InterventionState.DONE:
        click.echo(plain(f"{answer.state}: {answer.outcome}"))
        return ExitCode.OK
    if answer.state is InterventionState.REFUSED:
        click.echo(plain(f"{answer.state}: {answer.outcome}"), err=True)
        return ExitCode.FAILED
    said = f": {answer.outcome}" if answer.outcome else ""
    if timeout_s == 0:
        click.echo(plain(f"{answer.state}: {answer.name} was handed in{said}"))
        return ExitCode.OK
    remark(f"{answer.name} has no outcome after {timeout_s:g} s{said}; it stays asked for")
    return ExitCode.UNAVAILABLE


def _show(site: "Site", source: "JobSource", document: "Document", dry_run: DryRun) -> ExitCode:
    """The object as it would be sent, and before it, as comments, what the watchdog says would happen."""
    from holdfast.api.interventionspec import read_intervention, request_of

    checked = site.check(document) if dry_run is DryRun.SERVER else document
    is_refused = False
    try:
        told = source.client().forecast(request_of(read_intervention(document), "dry-run"))
    except HoldfastError as error:
        lines = [f"Only the shape was checked; what would happen is unknown: {error}"]
    else:
        is_refused = told.state is InterventionState.REFUSED
        lines = [f"It would be {told.state.value}" + (f": {told.outcome}" if told.outcome else "")]
        if not is_refused:
            lines += ["What would happen now:", *(f"- {each}" for each in told.effects)]
    for line in "\n".join(lines).splitlines():
        click.echo(f"# {line}")
    emit_yaml(checked)
    return ExitCode.FAILED if is_refused else ExitCode.OK
