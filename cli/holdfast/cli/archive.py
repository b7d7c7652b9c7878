"""Where incidents are read: from the watchdog while it runs, afterwards from what it stored."""

from collections.abc import Sequence
from pathlib import Path

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.incident import Incident
from holdfast.cli.statedirectory import RunningJob, StateDirectory, find_state_directory
from holdfast.cli.watchdogclient import WatchdogClient

STORED_LIMIT = 10_000


def connect(told: Path | None) -> WatchdogClient:
    """A client for the job of the state directory. Raises Unavailable when no watchdog was ever there."""
    directory = find_state_directory(told)
    at = directory.listening_at()
    if at is None:
        raise Unavailable(f"no watchdog runs for {directory.root}; the run is over, or has not begun")
    return WatchdogClient(at, directory.token(), job_of(directory).job)


def job_of(directory: StateDirectory) -> RunningJob:
    """Which job a state directory belongs to. Raises Unavailable when it is none."""
    job = directory.running_job()
    if job is None:
        raise Unavailable(f"{directory.root} is no state directory of a run")
    return job


def read_incidents(told: Path | None) -> tuple[Incident, ...]:
    """The job's incidents, oldest first; a run that is over is read from its store."""
    try:
        return connect(told).incidents()
    except Unavailable:
        directory = find_state_directory(told)
        if not directory.store_file.exists():
            raise
        return _stored_incidents(directory)


def _stored_incidents(directory: StateDirectory) -> tuple[Incident, ...]:
    from holdfast.watchdog.store.sqlite import SqliteStore

    store = SqliteStore(directory.store_file)
    try:
        return tuple(store.incidents(job_of(directory).job, limit=STORED_LIMIT))
    finally:
        store.close()


def pick(incidents: Sequence[Incident], wanted: str) -> Incident:
    """The incident called `wanted`, or the newest for "last". Raises InvalidInput when there is none."""
    if not incidents:
        raise InvalidInput(Problem("incident", wanted, "this job has had no incident"))
    if wanted == "last":
        return incidents[-1]
    for incident in incidents:
        if incident.id == wanted:
            return incident
    newest = ", ".join(incident.id for incident in incidents[-5:])
    raise InvalidInput(Problem("incident", wanted, f"the newest are {newest}"))
