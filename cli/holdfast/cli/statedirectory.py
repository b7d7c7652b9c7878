"""The state directory: where one embedded run keeps everything, and how other commands find it.

watchdog.json   host, port and pid of the watchdog; written by the watchdog when it listens
console.json    the same of the console, while one runs
series.json     the job's figures over time, as a console has kept them
watchdog.db     its store: journal, state, incidents; beside it watchdog.db.life, what the store has seen
token           what every local connection authenticates with, mode 0600
watchdog.pem    of a run on several machines: its watchdog's certificate, while it is alive; the key beside it
drained/NODE    of a run on Slurm: why it drained that node, until Slurm gives the node again
run.json        which job runs here
run.lock        locked by the `holdfast run` that is alive
beat            of a run on several machines: written anew every few seconds while it is alive
nodes/NAME/     the run directory of one local node: rank records, sockets
logs/           one file per rank and round, one register per launcher of who wrote which, one file per part
checkpoints/    where the job saves, unless its file says otherwise
trackers/       what waits for the trackers that the job is published to, and what names its run there
tensorboard/    event files of TensorBoard, where the job asks for them
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed, Unavailable
from holdfast.cli.sequel import Trained
from holdfast.wire.access import Trust

DEFAULT_PARENT = Path(".holdfast")
Content = TypeVar("Content")


class ListeningAt(msgspec.Struct, frozen=True):
    """`watchdog.json`."""

    host: str
    port: int
    pid: int


class RunningJob(msgspec.Struct, frozen=True):
    """`run.json`. `job` is namespace/name, `trained` what it was last started to train (None: nothing)."""

    job: str
    job_file: str
    trained: Trained | None = None


class StateDirectory:
    """The names inside one state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.watchdog_file = root / "watchdog.json"
        self.console_file = root / "console.json"
        self.store_file = root / "watchdog.db"
        self.token_file = root / "token"
        self.series_file = root / "series.json"
        self.certificate_file = root / "watchdog.pem"
        self.key_file = root / "watchdog.key"
        self.drained = root / "drained"
        self.run_file = root / "run.json"
        self.lock_file = root / "run.lock"
        self.beat_file = root / "beat"
        self.logs = root / "logs"
        self.checkpoints = root / "checkpoints"
        self.trackers = root / "trackers"
        self.event_files = root / "tensorboard"

    def node(self, name: str) -> Path:
        """The run directory of one local node."""
        return self.root / "nodes" / name

    def trust(self) -> Trust:
        """Whose certificate the watchdog shows; on one machine none, and it is spoken to plainly."""
        file = self.certificate_file if self.certificate_file.exists() else None
        return Trust(file, given_by=str(self.certificate_file))

    def listening_at(self) -> ListeningAt | None:
        """Where the watchdog last listened, None when it never did."""
        return _read(self.watchdog_file, ListeningAt)

    def console_at(self) -> ListeningAt | None:
        """Where its console listens, None while none does."""
        return _read(self.console_file, ListeningAt)

    def running_job(self) -> RunningJob | None:
        """The job of this directory, None when no run ever began here."""
        return _read(self.run_file, RunningJob)

    def write_running_job(self, job: RunningJob) -> None:
        """Note which job runs here. Touched at every start, it also tells which run is the newest."""
        self.run_file.write_bytes(msgspec.json.encode(job))

    def token(self) -> str:
        """The token, the first word of the file; more may follow. Raises Unavailable when there is none."""
        try:
            return self.token_file.read_text().split(maxsplit=1)[0]
        except (FileNotFoundError, IndexError):
            raise Unavailable(f"there is no token in {self.root}; is it the state directory of a run?") from None


def address_with_token(directory: StateDirectory, at: ListeningAt) -> str:
    """Of the run's console, for a browser: what is behind the # is sent to nobody. Raises Unavailable."""
    return f"http://{at.host}:{at.port}/#token={directory.token()}"


def state_directory_of(namespace: str, name: str) -> StateDirectory:
    """Where a job's state goes unless the user says otherwise: under the current directory."""
    return StateDirectory(DEFAULT_PARENT.absolute() / f"{namespace}-{name}")


def find_state_directory(told: Path | None) -> StateDirectory:
    """The directory the user named, otherwise the one used last under the current directory.

    Raises Unavailable when there is none.
    """
    if told is not None:
        if not told.is_dir():
            raise Unavailable(f"there is no state directory at {told}")
        return StateDirectory(told.absolute())
    runs = runs_under_here()
    if not runs:
        raise Unavailable(f"no run was found under {DEFAULT_PARENT.absolute()}; name one with --state-dir")
    return max(runs, key=lambda run: run.run_file.stat().st_mtime)


def runs_under_here() -> tuple[StateDirectory, ...]:
    """The state directories under the current directory."""
    found = DEFAULT_PARENT.absolute().glob("*/run.json")
    return tuple(StateDirectory(file.parent) for file in sorted(found) if file.is_file())


@contextlib.contextmanager
def run_lock(directory: StateDirectory, within_s: float = 1.0) -> Iterator[None]:
    """Hold the directory for this process; the kernel lets go when the process dies, however it dies.

    Another holder is waited for: a reader has it for a moment (`is_over`), and a file server keeps what a machine
    held that was lost for a while. Raises Unavailable when another run holds it, OSError when the directory cannot
    be made.
    """
    directory.root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + within_s
    try:
        while not _locks(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                holder = _holder(descriptor)
                who = f"pid {holder.pid} on {holder.machine}" if holder else "another process"
                raise Unavailable(
                    f"{directory.root} is in use by a run that is alive ({who}); "
                    "stop it, or give this one another --state-dir"
                )
            time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {os.uname().nodename}\n".encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)  # other machines as well see that it is over
    finally:
        os.close(descriptor)


def is_over(directory: StateDirectory) -> bool:
    """Whether a run was here and is not alive any more. False where no run ever held the directory."""
    try:
        descriptor = os.open(directory.lock_file, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        holder = _holder(descriptor)
        if holder is None:
            return True
        if holder.machine == os.uname().nodename and not _is_there(holder.pid):
            return True
        # Its number may be another process's by now, or one of another machine's that shares the directory.
        # The lock is tried only then: a run that begins would have to wait for us.
        return _locks(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who wrote its name into the lock."""

    pid: int
    machine: str


def _holder(descriptor: int) -> _Holder | None:
    pid, _, machine = os.pread(descriptor, 512, 0).decode(errors="replace").strip().partition(" ")
    return _Holder(int(pid), machine) if pid.isdecimal() else None


def _locks(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True  # it lives, and is another user's
    return True


def _read(file: Path, kind: type[Content]) -> Content | None:
    """A small JSON file written by another process; absent, half-written or foreign is None."""
    try:
        return decode_json(file.read_bytes(), kind)
    except (FileNotFoundError, Malformed):
        return None
