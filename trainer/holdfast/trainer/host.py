"""Who gives this process its rounds: a Holdfast launcher, or nobody but the process's own surroundings."""

import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from holdfast.api.bitflip import CORRUPTIBLE_VARIABLE
from holdfast.api.checkpoint import Standing
from holdfast.api.control import (
    CONTROL_VARIABLE,
    RUN_DIRECTORY_VARIABLE,
    Assignment,
    Attached,
    FromWorker,
    RoundEnded,
    ToWorker,
)
from holdfast.api.decoding import decode
from holdfast.api.errors import Damaged, InvalidInput, Malformed, Problem, Unavailable
from holdfast.api.membership import CollectiveFailed, LedgerTold, SaveWanted, Verified
from holdfast.api.profile import ProfileTold, ProfileWanted
from holdfast.api.rehearsal import REHEARSAL_VARIABLE, Rehearsal, read_rehearsal
from holdfast.api.round import Endpoint, Restore, Tier
from holdfast.api.stacks import FlightTold, FlightWanted
from holdfast.trainer.flight import last_collectives
from holdfast.trainer.profiling import Profiling
from holdfast.trainer.stay import Stay
from holdfast.wire.frame import FrameReader, frame
from holdfast.wire.unixsocket import reachable

logger = logging.getLogger(__name__)

PATIENCE_S = 300.0
"""How long a process whose collective failed waits for its round to be ended, before it gives up and fails.
Long against any decision of the watchdog (seconds), also over a restart of it; short against a human."""
ERROR_TEXT_CHARACTERS = 2000
BEAT_INTERVAL_S = 0.1
ABORT_INTERVAL_S = 0.01
"""How often a training thread that has not left an ended round is freed again: what it was just creating when
the round ended (a store, connections to peers) can make it wait once more."""
_READ_BYTES = 1 << 16
_SEND_TIMEOUT = struct.pack("ll", 5, 0)  # struct timeval: seconds, microseconds


class Mode(Enum):
    ATTACHED = "attached"  # under a Holdfast launcher that assigns rounds
    TORCHRUN = "torchrun"  # under any launcher that sets RANK and its companions: one round
    PLAIN = "plain"  # `python train.py`: one process, one round


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the environment says. Exactly one of `control_path` and `assignment` is set.

    `corruptible` is where a drill leaves what it wants corrupted, None outside of drills. `rehearsal` is set where
    steps are only trained again to be looked at.
    """

    mode: Mode
    run_directory: Path | None = None
    control_path: str | None = None
    assignment: Assignment | None = None
    corruptible: Path | None = None
    rehearsal: Rehearsal | None = None

    def only_assignment(self) -> Assignment:
        """The one round of a process without a Holdfast launcher."""
        assert self.assignment is not None
        return self.assignment


def surroundings_of(environment: Mapping[str, str]) -> Surroundings:
    """Read the mode out of `environment`. A Holdfast launcher wins over the variables of torchrun.

    Raises InvalidInput when RANK is set and its companions are missing or are no numbers, or what is to be
    rehearsed cannot be read.
    """
    rehearsal = _rehearsal(environment)
    directory = environment.get(RUN_DIRECTORY_VARIABLE)
    run_directory = Path(directory) if directory else None
    corruptible = run_directory if environment.get(CORRUPTIBLE_VARIABLE) else None
    control_path = environment.get(CONTROL_VARIABLE)
    if control_path and rehearsal is None:
        return Surroundings(Mode.ATTACHED, run_directory, control_path=control_path, corruptible=corruptible)
    mode = Mode.TORCHRUN if "RANK" in environment else Mode.PLAIN
    # The newest, wherever its script keeps them.
    restore = Restore(tier=Tier.CHECKPOINT, uri=rehearsal.uri if rehearsal else "")
    if mode is Mode.TORCHRUN:
        # The number of its round is the launcher's restart count, so it grows as rounds do.
        assignment = Assignment(
            job=environment.get("TORCHELASTIC_RUN_ID", "torchrun"),
            round=_number(environment, "TORCHELASTIC_RESTART_COUNT", default=0),
            rank=_number(environment, "RANK"),
            local_rank=_number(environment, "LOCAL_RANK", default=0),
            world_size=_number(environment, "WORLD_SIZE"),
            local_size=_number(environment, "LOCAL_WORLD_SIZE", default=1),
            endpoint=Endpoint(_text(environment, "MASTER_ADDR"), _number(environment, "MASTER_PORT")),
            restore=restore,
            reason="started by torchrun",
        )
    else:
        assignment = Assignment(
            job="plain",
            round=0,
            rank=0,
            local_rank=0,
            world_size=1,
            local_size=1,
            endpoint=Endpoint("", 0),
            restore=restore,
            reason="started without a launcher",
        )
    return Surroundings(mode, run_directory, assignment=assignment, corruptible=corruptible, rehearsal=rehearsal)


def _rehearsal(environment: Mapping[str, str]) -> Rehearsal | None:
    path = environment.get(REHEARSAL_VARIABLE)
    if not path:
        return None
    try:
        return read_rehearsal(Path(path))
    except (OSError, Malformed) as error:
        fix = f"leave it to `holdfast bisect`, which writes that file ({error})"
        raise InvalidInput(Problem(REHEARSAL_VARIABLE, path, fix)) from error


def failure_of(
    part: Assignment, error: Exception, *, age_s: float = 0.0, across: bool = False
) -> CollectiveFailed:
    """What is told of a collective that failed `age_s` ago; `across`: between replica groups, and within none."""
    logger.warning("collective failed round=%d rank=%d across=%s error=%s", part.round, part.rank, across, error)
    text = str(error)[:ERROR_TEXT_CHARACTERS]
    return CollectiveFailed(round=part.round, rank=part.rank, age_s=age_s, error=text, across=across)


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if value is None:
        raise InvalidInput(Problem(name, value, "set it beside RANK, as torchrun does"))
    return value


def _number(environment: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    if default is not None and name not in environment:
        return default
    value = _text(environment, name)
    try:
        return int(value)
    except ValueError:
        raise InvalidInput(Problem(name, value, "give a whole number")) from None


class Alone:
    """Plain python or stock torchrun: one round, given by the environment, ended by its training function. Its
    methods are those of a `Launcher` that is not there.
    """

    ledger: bytes | None = None

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    def next_assignment(self) -> Assignment:
        return self._assignment

    def attend(self, stay: Stay | None) -> None:
        pass

    def say(self, message: FromWorker) -> None:
        pass

    def can_heal(self) -> bool:
        return False


class ControlClosed(Unavailable):
    """The launcher closed the control socket, or what came over it was not ours."""


class Control:
    """The worker's end of the control socket (`holdfast.api.control`). Any thread may `send`, one `receive`."""

    def __init__(self, path: str) -> None:
        """Connect to the unix socket at `path`. Raises Unavailable when nobody listens there."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with reachable(Path(path)) as address:
                self._socket.connect(address)
        except OSError as error:
            self._socket.close()
            raise Unavailable(f"the launcher's control socket {path} does not answer: {error}") from error
        # A launcher that stopped reading must not stop the training loop for ever.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        self._sending = threading.Lock()
        self._reader = FrameReader()
        self._decoder: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: FromWorker) -> None:
        """Raises ControlClosed when the launcher is gone or does not read."""
        body = msgspec.msgpack.encode(message)
        with self._sending:
            try:
                self._socket.sendall(frame(body))
            except OSError as error:
                raise ControlClosed(f"the launcher did not take a message: {error}") from error

    def receive(self) -> list[ToWorker]:
        """What has arrived; call when the socket is readable. Raises ControlClosed at its end."""
        try:
            chunk = self._socket.recv(_READ_BYTES)
        except OSError as error:
            raise ControlClosed(f"the control socket broke: {error}") from error
        if not chunk:
            raise ControlClosed("the launcher closed the control socket")
        try:
            return [decode(self._decoder, body) for body in self._reader.feed(chunk)]
        except (Damaged, Malformed) as error:
            raise ControlClosed(f"a control frame could not be read: {error}") from error

    def close(self) -> None:
        self._socket.close()


class Launcher:
    """The launcher behind a control socket. `take` and `lose` are the side thread's, the rest anybody's.

    `ledger` is what the job has cost by now, as it was told last (`LedgerTold`).
    """

    def __init__(self, control: Control, *, pid: int) -> None:
        self.control = control
        self.stay: Stay | None = None
        self.ledger: bytes | None = None
        self._changed = threading.Condition()
        self._assignment: Assignment | None = None
        self._ended_round = -1
        self._end_reason = ""
        self._wanted: SaveWanted | None = None
        self._verified: Verified | None = None
        self._lost: str | None = None
        self.say(Attached(pid=pid))

    def next_assignment(self) -> Assignment:
        """Wait for a part in a round. Raises Unavailable when none can come any more."""
        with self._changed:
            while self._assignment is None:
                if self._lost is not None:
                    raise Unavailable(f"no further round will come: {self._lost}")
                self._changed.wait()
            assignment, self._assignment = self._assignment, None
            return assignment

    def attend(self, stay: Stay | None) -> None:
        """`stay` is what this process lives now, and is to be ended with its round; None: it lives none."""
        with self._changed:
            self.stay, pending = stay, self._assignment
            if stay is not None and pending is not None and stay.newest.goes_on(pending):
                self._assignment = None
                stay.go_on(pending)
            self._align()

    def say(self, message: FromWorker) -> None:
        """Tell the launcher; any thread. Never raises: training goes on when nobody listens."""
        try:
            self.control.send(message)
        except ControlClosed as error:
            logger.warning("launcher does not listen message=%s error=%s", type(message).__name__, error)

    def can_heal(self) -> bool:
        """Whether a round broken by a peer will be followed by another one for this process."""
        return self._lost is None

    def take(self, message: ToWorker) -> None:
        """Act on what the launcher says. An assignment to a newer round ends the one lived now."""
        with self._changed:
            match message:
                case Assignment() if self.stay is not None and self.stay.newest.goes_on(message):
                    self.stay.go_on(message)
                case Assignment():
                    self._assignment = message
                    self._note_end(message.round - 1, f"round {message.round} follows: {message.reason}")
                case RoundEnded():
                    self._note_end(message.round, message.reason)
                case SaveWanted():
                    self._wanted = message
                case Verified():
                    self._verified = message
                case LedgerTold():
                    self.ledger = message.report
                case ProfileWanted():
                    self._profile(message)
                case FlightWanted():
                    self.say(FlightTold(message.number, last_collectives()))
            self._align()
            self._changed.notify_all()

    def _profile(self, wanted: ProfileWanted) -> None:
        """Begin with the next step; where another one is under way, or the round is over, say so."""
        stay = self.stay
        if stay is None or stay.assignment.round != wanted.round or stay.profiling is not None:
            problem = "it is in no such round, or profiled already"
            self.say(
                ProfileTold(wanted.round, wanted.number, rank=0, problem=problem)
            )  # its launcher knows the rank
            return
        stay.profiling = Profiling(wanted, stay.assignment.rank, Path("holdfast-profiles"), self.say)

    def lose(self, why: str) -> None:
        """The launcher is gone. The round goes on; what waits for the launcher does not."""
        with self._changed:
            self._lost = why
            self._changed.notify_all()

    def _note_end(self, round: int, reason: str) -> None:
        if round > self._ended_round:
            self._ended_round, self._end_reason = round, reason

    def _align(self) -> None:
        """Tell the stay what has been said of its round: that may come before the round is entered here."""
        stay, wanted, verified = self.stay, self._wanted, self._verified
        if stay is None:
            return
        # Of a replica group that goes on: also before it has taken the newer round up.
        newest = stay.newest.round
        if wanted is not None and wanted.round == newest:
            stay.saves.want(wanted.number)
        if verified is not None and verified.round == newest:
            stay.standing = Standing(verified.step, verified.unhealthy_from)
            self._verified = None  # once: what the stay restores afterwards may lower it
        if stay.assignment.round <= self._ended_round:
            stay.end(self._end_reason)


@contextmanager
def side_thread(beat: Callable[[], None], launcher: Launcher | None) -> Iterator[None]:
    """While the `with` block runs, a thread beats, listens to the launcher, and frees the training thread when its
    round is over.

    It is the only other thread of a run. It never touches the training state: all it does to the training thread
    is to close the connections that thread waits on. `beat` is called every `BEAT_INTERVAL_S`; without a launcher
    it does nothing else.
    """
    stop = os.eventfd(0, os.EFD_CLOEXEC)
    thread = threading.Thread(target=_serve, args=(stop, beat, launcher), name="holdfast-side", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.eventfd_write(stop, 1)
        thread.join()
        os.close(stop)


def _serve(stop: int, beat: Callable[[], None], launcher: Launcher | None) -> None:
    poll = select.poll()
    poll.register(stop, select.POLLIN)
    if launcher is not None:
        poll.register(launcher.control, select.POLLIN)
    next_beat = time.monotonic()
    while True:
        stay = None if launcher is None else launcher.stay
        pause_s = max(0.0, next_beat - time.monotonic())
        if stay is not None and stay.is_over:
            pause_s = min(pause_s, ABORT_INTERVAL_S)
        ready = {descriptor for descriptor, _ in poll.poll(pause_s * 1000)}
        if stop in ready:
            return
        if launcher is not None:
            if ready:
                try:
                    for message in launcher.control.receive():
                        launcher.take(message)
                except ControlClosed as error:
                    poll.unregister(launcher.control)
                    launcher.lose(str(error))
            stay = launcher.stay  # read once: the training thread may leave it meanwhile
            if stay is not None and stay.is_over:
                stay.group.abort()
            elif stay is not None:
                stay.tend()
        if time.monotonic() >= next_beat:
            beat()
            next_beat = time.monotonic() + BEAT_INTERVAL_S
