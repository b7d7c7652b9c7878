"""`holdfast replay`."""

import click
import msgspec

from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import open_site
from holdfast.cli.output import Format, Shown, emit, format_option
from holdfast.cli.target import JobWord, Target, target_options


@click.command()
@click.option("--events", is_flag=True, help="Show every event with what was decided and why.")
@target_options(JobWord.ARGUMENT)
@format_option
def replay(events: bool, target: Target, form: Format) -> ExitCode:
    """Feed JOB's journal to the brain again; exits with 1 when it does not lead to what is kept.

    A run on this machine is compared byte for byte with the state that was stored, a watchdog that runs elsewhere
    by the round and the plan it shows.
    """
    from holdfast.cli.localsite import LocalSource
    from holdfast.cli.replaying import replay_shown, replay_stored
    from holdfast.cli.view.replay import replay_line, shown_verdict_text, verdict_text
    from holdfast.watchdog.journal.replay import Verdict

    source = open_site(target).source()
    show = (lambda step: click.echo(replay_line(step))) if events else (lambda _: None)
    if isinstance(source, LocalSource):
        outcome, told = replay_stored(source, show), verdict_text
    else:
        outcome, told = replay_shown(source.client(), show), shown_verdict_text
    value = msgspec.to_builtins(outcome)
    del value["state"]  # pages long, and what the verdict is about
    emit(Shown(value=value, table=lambda: told(outcome), names=lambda: [outcome.verdict.value]), form)
    return ExitCode.FAILED if outcome.verdict is Verdict.DIFFERENT else ExitCode.OK
