"""The interventions: what an on-call engineer asks a job for. Each is recorded with its reason."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import click

from holdfast.api.errors import HoldfastError
from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import open_site
from holdfast.cli.output import emit_yaml, remark
from holdfast.cli.site import Answer, Document, JobSource, Site
from holdfast.cli.target import JobWord, Target, target_options

DEFAULT_TIMEOUT_S = 60.0


class DryRun(StrEnum):
    """As kubectl has it."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Options:
    """How it is asked for; without a time-out the outcome is not waited for."""

    reason: str
    dry_run: DryRun
    timeout_s: float


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


def _intervention(word: JobWord, name: str | None = None) -> Callable[[Callable[..., ExitCode]], click.Command]:
    """Makes a command of a function that takes `target`, `options` and the words of its action."""

    def decorate(function: Callable[..., ExitCode]) -> click.Command:
        def gathered(*, reason: str, dry_run: str, timeout: float, no_wait: bool, **words: Any) -> ExitCode:
            return function(options=Options(reason, DryRun(dry_run), 0.0 if no_wait else timeout), **words)

        gathered.__name__, gathered.__doc__ = function.__name__, function.__doc__
        wrapped: Any = target_options(word)(gathered)
        for option in reversed(_OPTIONS):
            wrapped = option(wrapped)
        wrapped.__click_params__ += getattr(function, "__click_params__", [])
        return click.command(name or function.__name__, cls=InterventionCommand)(wrapped)

    return decorate


@_intervention(JobWord.OPTION)
@click.argument("node")
def evict(node: str, target: Target, options: Options) -> ExitCode:
    """Take NODE out of the job; a spare or fewer nodes go on."""
    return _intervene(InterventionAction.EVICT, target, options, {"node": node})


@_intervention(JobWord.OPTION, "return")
@click.argument("node")
def return_(node: str, target: Target, options: Options) -> ExitCode:
    """Put NODE, which was avoided, back into service."""
    return _intervene(InterventionAction.RETURN, target, options, {"node": node})


@_intervention(JobWord.OPTION, "self-test")
@click.argument("node")
def self_test(node: str, target: Target, options: Options) -> ExitCode:
    """Test the devices of NODE: at once when it has no ranks, else when its workers have next left."""
    return _intervene(InterventionAction.TEST, target, options, {"node": node})


@_intervention(JobWord.ARGUMENT)
def pause(target: Target, options: Options) -> ExitCode:
    """Stop training JOB; members stay and wait."""
    return _intervene(InterventionAction.PAUSE, target, options, {})


@_intervention(JobWord.ARGUMENT)
def resume(target: Target, options: Options) -> ExitCode:
    """Go on training JOB after a pause."""
    return _intervene(InterventionAction.RESUME, target, options, {})


@_intervention(JobWord.ARGUMENT)
@click.option("--fresh", is_flag=True, help="Start over: from step 0, whatever checkpoints there are.")
def restart(fresh: bool, target: Target, options: Options) -> ExitCode:
    """Start every worker of JOB again, from the newest checkpoint."""
    return _intervene(InterventionAction.RESTART, target, options, {"fresh": True} if fresh else {})


@_intervention(JobWord.ARGUMENT)
def take(target: Target, options: Options) -> ExitCode:
    """Take a checkpoint of JOB soon."""
    return _intervene(InterventionAction.CHECKPOINT, target, options, {})


@_intervention(JobWord.OPTION)
@click.argument("step", type=click.IntRange(min=0))
@click.option("--skip-batches", type=click.IntRange(min=0), default=0, help="Batches to pass over from there.")
@click.option(
    "--learning-rate-scale",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=1.0,
    help="What to multiply the learning rate by from there.",
)
def rewind(step: int, skip_batches: int, learning_rate_scale: float, target: Target, options: Options) -> ExitCode:
    """Go back to the newest checkpoint at or before STEP, and go on from there."""
    words = {"toStep": step, "skipBatches": skip_batches, "learningRateScale": learning_rate_scale}
    return _intervene(InterventionAction.REWIND, target, options, {"rewind": words})


@_intervention(JobWord.OPTION)
@click.argument("nodes", type=click.IntRange(min=1))
def resize(nodes: int, target: Target, options: Options) -> ExitCode:
    """Let the job have NODES nodes at most."""
    return _intervene(InterventionAction.RESIZE, target, options, {"nodes": nodes})


@_intervention(JobWord.OPTION, "skip-batches")
@click.argument("batches", type=click.IntRange(min=1))
def skip_batches(batches: int, target: Target, options: Options) -> ExitCode:
    """Restore the newest checkpoint and pass over BATCHES batches from there."""
    return _intervene(InterventionAction.SKIP_BATCHES, target, options, {"skipBatches": batches})


def _intervene(action: InterventionAction, target: Target, options: Options, words: dict[str, Any]) -> ExitCode:
    from holdfast.api.interventionspec import read_intervention

    site = open_site(target)
    source = site.source()
    document = document_of(action, source.job, options.reason, words)
    read_intervention(document)
    if options.dry_run is not DryRun.NONE:
        return _show(site, source, document, options.dry_run)
    return conclude(site.hand_in(document, options.timeout_s), options.timeout_s)


def document_of(action: InterventionAction, job: str, reason: str, words: dict[str, Any]) -> Document:
    """The Intervention as anybody would write it by hand."""
    from holdfast.api.metadata import API_VERSION

    namespace, _, name = job.partition("/")
    return {
        "apiVersion": API_VERSION,
        "kind": "Intervention",
        "metadata": {"generateName": f"{action.lower()}-", "namespace": namespace},
        "spec": {"job": name, "action": action.value, "reason": reason, **words},
    }


def conclude(answer: Answer, timeout_s: float) -> ExitCode:
    """Say what became of it."""
    if answer.state is InterventionState.DONE:
        click.echo(f"{answer.state}: {answer.outcome}")
        return ExitCode.OK
    if answer.state is InterventionState.REFUSED:
        click.echo(f"{answer.state}: {answer.outcome}", err=True)
        return ExitCode.FAILED
    said = f": {answer.outcome}" if answer.outcome else ""
    if timeout_s == 0:
        click.echo(f"{answer.state}: {answer.name} was handed in{said}")
        return ExitCode.OK
    remark(f"{answer.name} has no outcome after {timeout_s:g} s{said}; it stays asked for")
    return ExitCode.UNAVAILABLE


def _show(site: Site, source: JobSource, document: Document, dry_run: DryRun) -> ExitCode:
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
        lines = [
            f"It would be {told.state.value}: {told.outcome}"
            if told.outcome
            else f"It would be {told.state.value}"
        ]
        if not is_refused:
            lines += ["What would happen now:", *(f"- {each}" for each in told.effects)]
    for line in "\n".join(lines).splitlines():
        click.echo(f"# {line}")
    emit_yaml(checked)
    return ExitCode.FAILED if is_refused else ExitCode.OK
