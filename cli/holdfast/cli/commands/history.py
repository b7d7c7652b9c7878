"""`holdfast incidents|why|journal|replay`: what happened to a job, and what was decided about it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click
import msgspec

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.event import Journaled
from holdfast.cli.output import UNKNOWN, ExitCode, Format, emit, format_option, instant, plain
from holdfast.cli.seen import RecordedIncidents
from holdfast.cli.site import open_site
from holdfast.cli.target import JobWord, Target, target_options
from holdfast.cli.view import incidents_text, incidents_wide_text, recorded_incidents_text, story

if TYPE_CHECKING:
    from holdfast.cli.watchdogclient import WatchdogClient
    from holdfast.watchdog.journal.replay import Replay, Replayed

EVENT_WIDTH_MAX: Final = 160
LOOKS_MAX: Final = 5  # the job goes on meanwhile: how often to catch up with it before giving up


@click.command()
@target_options(JobWord.ARGUMENT)
@format_option
def incidents(target: Target, form: Format) -> ExitCode:
    """What broke in JOB, oldest first.

    A run on this machine is read after its end as well. In a cluster whose watchdog is away the newest incidents
    are read from the TrainingJob's status, which keeps less of them; stderr says so.
    """
    found = open_site(target).source().incidents()
    if isinstance(found, RecordedIncidents):
        kept = found.incidents
        ids = [f"incident/{each.get('id', UNKNOWN)}" for each in kept]
        return emit(form, kept, table=recorded_incidents_text, names=ids)
    ids = [f"incident/{each.id}" for each in found]
    return emit(form, found, table=incidents_text, wide=incidents_wide_text, names=ids)


@click.command()
@click.argument("incident", default="last")
@target_options(JobWord.OPTION)
@format_option
def why(incident: str, target: Target, form: Format) -> ExitCode:
    """The whole story of INCIDENT ("last": the newest): culprit, evidence, actions with reasons, cost."""
    kept = open_site(target).source().incidents()
    if isinstance(kept, RecordedIncidents):
        raise Unavailable("the whole story is at the watchdog, which is away; `incidents` shows what is recorded")
    if not kept:
        raise InvalidInput(Problem("incident", incident, "this job has had no incident"))
    found = kept[-1] if incident == "last" else next((each for each in kept if each.id == incident), None)
    if found is None:
        newest = ", ".join(each.id for each in kept[-5:])
        raise InvalidInput(Problem("incident", incident, f"the newest are {newest}"))
    return emit(form, found, table=story, names=[f"incident/{found.id}"])


@click.command()
@click.option("--after", type=click.IntRange(min=0), default=0, show_default=True, help="Skip the lines up to it.")
@target_options(JobWord.ARGUMENT)
@format_option
def journal(after: int, target: Target, form: Format) -> ExitCode:
    """Every event of JOB that was recorded, oldest first. -o json writes one event per line."""
    lines = open_site(target).source().journal(after)
    if form in (Format.YAML, Format.NAME):
        every = tuple(lines)
        return emit(form, every, table=str, names=[f"event/{line.offset}" for line in every])
    for line in lines:
        click.echo(msgspec.json.encode(line) if form is Format.JSON else plain(journal_line(line)))
    return ExitCode.OK


def journal_line(line: Journaled) -> str:
    """Place, time, event."""
    fields = msgspec.to_builtins(line.event)
    kind = fields.pop("type")
    told = {name: value for name, value in fields.items() if value not in (None, [], "")}
    for name, value in told.items():
        if not isinstance(value, str) or " " in value:
            told[name] = msgspec.json.encode(value).decode()
    words = " ".join(f"{name}={value}" for name, value in told.items())
    return f"{line.offset:6d}  {instant(line.at)}  {kind}  {words}".rstrip()


@click.command()
@click.option("--events", is_flag=True, help="Show every event with what was decided and why.")
@target_options(JobWord.ARGUMENT)
@format_option
def replay(events: bool, target: Target, form: Format) -> ExitCode:
    """Feed JOB's journal to the brain again; exits with 1 when that does not lead to the recorded state.

    A run on this machine is compared byte for byte with the state that was stored, a watchdog that runs elsewhere
    by the round and the plan it shows.
    """
    from holdfast.cli.localsite import LocalSource
    from holdfast.watchdog import brain
    from holdfast.watchdog.journal.replay import Verdict, walk
    from holdfast.watchdog.journal.replay import replay as compare

    source = open_site(target).source()
    show = _show_replayed if events else lambda _: None
    if isinstance(source, LocalSource):
        with source.store() as store:
            for step in walk(store, source.job, brain=brain):
                show(step)
            outcome = compare(store, source.job, brain=brain)
        told = _stored_verdict(outcome)
    else:
        outcome = replay_shown(source.client(), show)
        told = _shown_verdict(outcome)
    value = msgspec.to_builtins(outcome)
    del value["state"]  # pages long, and what the verdict is about
    verdict_text = "\n".join([told, *(f"  {difference}" for difference in outcome.differences)])
    emit(form, value, table=lambda _: verdict_text, names=[outcome.verdict.value])
    return ExitCode.FAILED if outcome.verdict is Verdict.DIFFERENT else ExitCode.OK


def replay_shown(client: "WatchdogClient", show: "Callable[[Replayed], None]") -> "Replay":
    """Compared with the round and plan the watchdog shows, once nothing was journaled between reading both.

    Raises Unavailable when the journal grows faster than it can be read, or when its first lines are gone.
    """
    from holdfast.watchdog import brain
    from holdfast.watchdog.brain.step import turn
    from holdfast.watchdog.journal.replay import Replay, Replayed, Verdict

    state, offset = brain.initial(client.job), 0
    for _ in range(LOOKS_MAX):
        for line in client.journal(offset):
            if line.offset != offset + 1:
                raise Unavailable(
                    f"the journal of {client.job} begins at line {line.offset}; what the lines before it led to"
                    " is only in the watchdog's store, so that it cannot be replayed from here"
                )
            step = turn(brain, state, line.event, line.at)
            state, offset = step.state, line.offset
            show(Replayed(line, step.effects, step.reason, state))
        kept = {"desired": client.desired(), "plan": client.plan()}
        if next(client.journal(offset), None) is None:
            differences = tuple(
                f"{name}: the journal gives {getattr(state, name)!r}, shown is {value!r}"
                for name, value in kept.items()
                if getattr(state, name) != value
            )
            verdict = Verdict.DIFFERENT if differences else Verdict.EQUAL
            return Replay(client.job, offset, state, verdict, offset, differences)
    raise Unavailable(f"the journal of {client.job} grows faster than it can be read; try again")


def _show_replayed(step: "Replayed") -> None:
    """One event: its place, what it was, what was decided and why."""
    event = msgspec.json.encode(step.line.event).decode()
    shown = event if len(event) <= EVENT_WIDTH_MAX else f"{event[: EVENT_WIDTH_MAX - 1]}…"
    effects = ", ".join(type(effect).__name__ for effect in step.effects) or "nothing"
    says = f"{step.line.offset:6d}  {step.line.at:.3f}  {shown}\n        -> {effects}: {step.reason.says}"
    click.echo(plain(says))


def _shown_verdict(outcome: "Replay") -> str:
    """Whether the journal leads to the round and plan that a watchdog shows."""
    read = f"{outcome.lines} events of {outcome.job} were replayed"
    if outcome.differences:
        return f"{read}; what is shown differs from what they lead to:"
    return f"{read}; they lead to the round and the plan that are shown"


def _stored_verdict(outcome: "Replay") -> str:
    """Whether the journal leads to the state that was kept."""
    from holdfast.watchdog.journal.replay import Verdict

    read = f"{outcome.lines - outcome.begun_at} events of {outcome.job} were replayed"
    if outcome.begun_at:
        read += f" from the state kept at event {outcome.begun_at} (older events were compacted)"
    if outcome.verdict is Verdict.NOTHING_KEPT:
        return f"{read}; no state was kept to compare with"
    if outcome.verdict is Verdict.EQUAL:
        return f"{read}; at event {outcome.compared_at} the state is the one that was kept, byte for byte"
    return f"{read}; at event {outcome.compared_at} the state differs from the one that was kept:"
