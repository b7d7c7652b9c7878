"""`holdfast incidents|why|journal|replay`: what happened to a job, and what was decided about it."""

from collections.abc import Sequence

import click
import msgspec

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.incident import Incident
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import open_site
from holdfast.cli.output import Format, emit, format_option
from holdfast.cli.seen import RecordedIncidents
from holdfast.cli.target import JobWord, Target, target_options
from holdfast.cli.view.incident import incidents_text, incidents_wide_text, recorded_incidents_text, story
from holdfast.cli.view.journal import journal_line


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
        return emit(
            form,
            kept,
            table=lambda: recorded_incidents_text(kept),
            names=lambda: [f"incident/{each.get('id', '?')}" for each in kept],
        )
    return emit(
        form,
        found,
        table=lambda: incidents_text(found),
        wide=lambda: incidents_wide_text(found),
        names=lambda: [f"incident/{each.id}" for each in found],
    )


@click.command()
@click.argument("incident", default="last")
@target_options(JobWord.OPTION)
@format_option
def why(incident: str, target: Target, form: Format) -> ExitCode:
    """The whole story of INCIDENT ("last": the newest): culprit, evidence, actions with reasons, cost."""
    kept = open_site(target).source().incidents()
    if isinstance(kept, RecordedIncidents):
        raise Unavailable("the whole story is at the watchdog, which is away; `incidents` shows what is recorded")
    found = _called(incident, kept)
    return emit(form, found, table=lambda: story(found), names=lambda: [f"incident/{found.id}"])


def _called(wanted: str, incidents: Sequence[Incident]) -> Incident:
    """The incident of that id, or the newest for "last". Raises InvalidInput when there is none."""
    if not incidents:
        raise InvalidInput(Problem("incident", wanted, "this job has had no incident"))
    if wanted == "last":
        return incidents[-1]
    for incident in incidents:
        if incident.id == wanted:
            return incident
    newest = ", ".join(incident.id for incident in incidents[-5:])
    raise InvalidInput(Problem("incident", wanted, f"the newest are {newest}"))


@click.command()
@click.option("--after", type=click.IntRange(min=0), default=0, show_default=True, help="Skip the lines up to it.")
@target_options(JobWord.ARGUMENT)
@format_option
def journal(after: int, target: Target, form: Format) -> ExitCode:
    """Every event of JOB that was recorded, oldest first. -o json writes one event per line."""
    lines = open_site(target).source().journal(after)
    if form in (Format.YAML, Format.NAME):
        every = tuple(lines)
        return emit(form, every, table=str, names=lambda: [f"event/{line.offset}" for line in every])
    for line in lines:
        click.echo(msgspec.json.encode(line) if form is Format.JSON else journal_line(line))
    return ExitCode.OK


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
    from holdfast.cli.replaying import (
        replay_line,
        replay_shown,
        replay_stored,
        shown_verdict_text,
        stored_verdict_text,
    )
    from holdfast.watchdog.journal.replay import Verdict

    source = open_site(target).source()
    show = (lambda step: click.echo(replay_line(step))) if events else (lambda _: None)
    if isinstance(source, LocalSource):
        outcome, verdict_text = replay_stored(source, show), stored_verdict_text
    else:
        outcome, verdict_text = replay_shown(source.client(), show), shown_verdict_text
    value = msgspec.to_builtins(outcome)
    del value["state"]  # pages long, and what the verdict is about
    emit(form, value, table=lambda: verdict_text(outcome), names=lambda: [outcome.verdict.value])
    return ExitCode.FAILED if outcome.verdict is Verdict.DIFFERENT else ExitCode.OK
