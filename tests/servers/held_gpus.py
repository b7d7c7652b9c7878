"""The GPUs that a job holds, counted member by member: what its ledger keeps by other means."""

from pathlib import Path

from holdfast.api.round import Round
from holdfast.api.status import JobPhase
from holdfast.cli.statedirectory import StateDirectory
from holdfast.watchdog import brain
from holdfast.watchdog.brain.ledger import microseconds
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.journal.replay import walk
from holdfast.watchdog.store.sqlite import SqliteStore


def gpus_held(state: JobState) -> int:
    """Of who is there, and of who was lost of the round that is shown."""
    if state.policy is None or state.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED):
        return 0
    there = {each.name for each in state.members if each.standing is not MemberState.LOST}
    if isinstance(state.desired, Round) and state.phase is not JobPhase.SUSPENDED:
        there |= state.desired.names
    return len(there) * state.policy.processes_per_node


def assert_every_gpu_second_is_booked(state: Path) -> None:
    """What the rows of a run's ledger sum to after each line of its journal, in its state directory, is
    what its members held, exactly.
    """
    directory = StateDirectory(state)
    running = directory.running_job()
    assert running is not None
    store = SqliteStore(directory.store_file)
    held, held_us, counted_us, lines = 0, 0, 0, 0
    try:
        for each in walk(store, running.job, brain=brain):
            now_us = microseconds(each.line.at)
            held_us += held * (now_us - counted_us)
            held, counted_us, lines = gpus_held(each.state), now_us, lines + 1
            booked = each.state.ledger.at(each.line.at).total().gpu_us
            assert booked == held_us, f"line {each.line.offset}: {booked} us in rows, {held_us} us held"
    finally:
        store.close()
    assert lines > 0
    assert held_us > 0
