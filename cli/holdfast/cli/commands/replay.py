"""`holdfast replay`."""

from pathlib import Path

import click
import msgspec

from holdfast.api.errors import Unavailable
from holdfast.cli.archive import job_of
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.output import Format, emit, format_option, state_option
from holdfast.cli.statedirectory import find_state_directory
from holdfast.cli.view.replay import replay_line, verdict_text


@click.command()
@click.option("--events", is_flag=True, help="Show every event with what was decided and why.")
@state_option
@format_option
def replay(events: bool, state_dir: Path | None, form: Format) -> ExitCode:
    """Feed the journal to the brain again; exits with 1 when it does not reach the state that was kept."""
    from holdfast.watchdog import brain
    from holdfast.watchdog import replay as replaying
    from holdfast.watchdog.store.sqlite import SqliteStore

    directory = find_state_directory(state_dir)
    if not directory.store_file.exists():
        raise Unavailable(f"there is no journal in {directory.root}")
    job = job_of(directory).job
    store = SqliteStore(directory.store_file)
    try:
        if events:
            for step in replaying.walk(store, job, brain=brain):
                click.echo(replay_line(step))
        outcome = replaying.replay(store, job, brain=brain)
    finally:
        store.close()
    shown = msgspec.to_builtins(outcome)
    del shown["state"]  # pages long, and what the verdict is about
    emit(shown, form, lambda: verdict_text(outcome))
    return ExitCode.FAILED if outcome.verdict is replaying.Verdict.DIFFERENT else ExitCode.OK
