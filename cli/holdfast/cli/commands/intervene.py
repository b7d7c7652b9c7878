"""The interventions: what an on-call engineer asks a job for. Each is recorded with its reason."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import click

from holdfast.api.errors import HoldfastError
from holdfast.api.intervention import Forecast, InterventionAction, InterventionState
from holdfast.api.selftest import TestLevel
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import open_site
from holdfast.cli.output import emit_yaml, remark
from holdfast.cli.site import Answer, Document, JobSource, Patience, Site
from holdfast.cli.target import JobWord, Target, target_options

DEFAULT_TIMEOUT_S = 60.0


class DryRun(StrEnum):
    """As kubectl has it."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Terms:
    """How it is asked for."""

    reason: str
    dry_run: DryRun
    patience: Patience


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
    """Makes a command of a function that takes `target`, `terms` and the words of its action."""

    def decorate(function: Callable[..., ExitCode]) -> click.Command:
        def gathered(*, reason: str, dry_run: str, timeout: float, no_wait: bool, **words: Any) -> ExitCode:
            patience = Patience(0.0 if no_wait else timeout)
            return function(terms=Terms(reason, DryRun(dry_run), patience), **words)

        gathered.__name__, gathered.__doc__ = function.__name__, function.__doc__
        wrapped: Any = target_options(word)(gathered)
        for option in reversed(_OPTIONS):
            wrapped = option(wrapped)
        wrapped.__click_params__ += getattr(function, "__click_params__", [])
        return click.command(name or function.__name__, cls=InterventionCommand)(wrapped)

    return decorate


@_intervention(JobWord.OPTION)
@click.argument("node")
def evict(node: str, target: Target, terms: Terms) -> ExitCode:
    """Take NODE out of the job; a spare or fewer nodes go on."""
    return _intervene(InterventionAction.EVICT, target, terms, {"node": node})


@_intervention(JobWord.OPTION, "return")
@click.argument("node")
def return_(node: str, target: Target, terms: Terms) -> ExitCode:
    """Put NODE, which was avoided, back into service."""
    return _intervene(InterventionAction.RETURN, target, terms, {"node": node})


@_intervention(JobWord.OPTION, "self-test")
@click.argument("node")
@click.option(
    "--level",
    type=click.Choice([each.value for each in TestLevel]),
    help="How thorough. Without it: full of a node without ranks, else light. A full one takes a node out of the "
    "round: a spare takes its ranks, or training waits.",
)
def self_test(node: str, level: str | None, target: Target, terms: Terms) -> ExitCode:
    """Test the devices of NODE: at once when it has no ranks, else when its workers have next left; with `--level
    full` they leave for it, once a checkpoint is committed.
    """
    words = {"node": node} if level is None else {"node": node, "level": level}
    return _intervene(InterventionAction.TEST, target, terms, words)


@_intervention(JobWord.ARGUMENT)
def pause(target: Target, terms: Terms) -> ExitCode:
    """Stop training JOB; members stay and wait."""
    return _intervene(InterventionAction.PAUSE, target, terms, {})


@_intervention(JobWord.ARGUMENT)
def resume(target: Target, terms: Terms) -> ExitCode:
    """Go on training JOB after a pause."""
    return _intervene(InterventionAction.RESUME, target, terms, {})


@_intervention(JobWord.ARGUMENT)
@click.option("--fresh", is_flag=True, help="Start over: from step 0, whatever checkpoints there are.")
def restart(fresh: bool, target: Target, terms: Terms) -> ExitCode:
    """Start every worker of JOB again, from the newest checkpoint."""
    return _intervene(InterventionAction.RESTART, target, terms, {"fresh": True} if fresh else {})


@_intervention(JobWord.ARGUMENT)
def take(target: Target, terms: Terms) -> ExitCode:
    """Take a checkpoint of JOB soon."""
    return _intervene(InterventionAction.CHECKPOINT, target, terms, {})


@_intervention(JobWord.OPTION)
@click.argument("step", type=click.IntRange(min=0))
@click.option("--skip-batches", type=click.IntRange(min=0), default=0, help="Batches to pass over from there.")
@click.option(
    "--learning-rate-scale",
    type=click.FloatRange(min=0, min_open=True, max=1),
    default=1.0,
    help="What to multiply the learning rate by from there.",
)
def rewind(step: int, skip_batches: int, learning_rate_scale: float, target: Target, terms: Terms) -> ExitCode:
    """Go back to the newest checkpoint at or before STEP, and go on from there."""
    words = {"toStep": step, "skipBatches": skip_batches, "learningRateScale": learning_rate_scale}
    return _intervene(InterventionAction.REWIND, target, terms, {"rewind": words})


@_intervention(JobWord.OPTION)
@click.argument("nodes", type=click.IntRange(min=1))
def resize(nodes: int, target: Target, terms: Terms) -> ExitCode:
    """Let the job have NODES nodes at most."""
    return _intervene(InterventionAction.RESIZE, target, terms, {"nodes": nodes})


@_intervention(JobWord.OPTION, "skip-batches")
@click.argument("batches", type=click.IntRange(min=1))
def skip_batches(batches: int, target: Target, terms: Terms) -> ExitCode:
    """Restore the newest checkpoint and pass over BATCHES batches from there."""
    return _intervene(InterventionAction.SKIP_BATCHES, target, terms, {"skipBatches": batches})


def _intervene(action: InterventionAction, target: Target, terms: Terms, words: dict[str, Any]) -> ExitCode:
    from holdfast.api.interventionspec import read_intervention

    site = open_site(target)
    source = site.source()
    document = document_of(action, source.job, terms.reason, words)
    read_intervention(document)
    if terms.dry_run is not DryRun.NONE:
        return _show(site, source, document, terms.dry_run)
    return conclude(site.hand_in(document, terms.patience), terms.patience)


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


def conclude(answer: Answer, patience: Patience) -> ExitCode:
    """Say what became of it."""
    if answer.state is InterventionState.DONE:
        click.echo(f"{answer.state}: {answer.outcome}")
        return ExitCode.OK
    if answer.state is InterventionState.REFUSED:
        click.echo(f"{answer.state}: {answer.outcome}", err=True)
        return ExitCode.FAILED
    said = f": {answer.outcome}" if answer.outcome else ""
    if patience.timeout_s == 0:
        click.echo(f"{answer.state}: {answer.name} was handed in{said}")
        return ExitCode.OK
    remark(f"{answer.name} has no outcome after {patience.timeout_s:g} s{said}; it stays asked for")
    return ExitCode.UNAVAILABLE


def _show(site: Site, source: JobSource, document: Document, dry_run: DryRun) -> ExitCode:
    """The object as it would be sent, and before it, as comments, what the watchdog says would happen."""
    checked = site.check(document) if dry_run is DryRun.SERVER else document
    told = _foretold(source, document)
    for line in "\n".join(forecast_lines(told)).splitlines():
        click.echo(f"# {line}")
    emit_yaml(checked)
    is_refused = isinstance(told, Forecast) and told.state is InterventionState.REFUSED
    return ExitCode.FAILED if is_refused else ExitCode.OK


def _foretold(source: JobSource, document: Document) -> Forecast | HoldfastError:
    """What the watchdog says would happen, or why it says nothing."""
    from holdfast.api.interventionspec import read_intervention, request_of

    try:
        return source.client().forecast(request_of(read_intervention(document), "dry-run"))
    except HoldfastError as error:
        return error


def forecast_lines(told: Forecast | HoldfastError) -> list[str]:
    """A forecast, a sentence a line."""
    if isinstance(told, HoldfastError):
        return [f"Only the shape was checked; what would happen is unknown: {told}"]
    verdict = f"{told.state.value}: {told.outcome}" if told.outcome else told.state.value
    if told.state is InterventionState.REFUSED:
        return [f"It would be {verdict}"]
    return [f"It would be {verdict}", "What would happen now:", *(f"- {each}" for each in told.effects)]
