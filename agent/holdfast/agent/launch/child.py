"""A forked child of the warm parent turns itself into a worker: what `python train.py` would have been.

Everything a fresh interpreter would have and a fork does not is put right here: session, parent-death signal,
environment, arguments, working directory, output, signal handlers, random state. It ends by `os._exit`,
because tearing down an interpreter with torch in it costs half a second; exit functions run and output is
flushed before that.
"""

import atexit
import contextlib
import ctypes
import datetime
import faulthandler
import json
import os
import random
import runpy
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn

from holdfast.agent.launch.endsignals import note_signals
from holdfast.agent.launch.forking import EntrypointKind, Fork
from holdfast.agent.launch.importlog import ImportLog, log_file
from holdfast.agent.launch.spawned import note_spawns
from holdfast.api import rankrecord
from holdfast.api.control import RUN_DIRECTORY_VARIABLE, record_file_name
from holdfast.api.rankrecord import UNKNOWN_INT, HealthZone, Phase, ProofZone, ReplicaZone, StepZone
from holdfast.api.stacks import SIGNAL, stacks_file_name

# Source: the constants of prctl(2), https://man7.org/linux/man-pages/man2/prctl.2.html
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)

EMPTY: Mapping[str, tuple[str | None, str | None]] = MappingProxyType({})
FAILED = 1
NOT_STARTED = 127
_UNLOCKED = 2  # an even sequence; zero means that nothing was written yet
_FIRST_KNOCK_S = 0.001
_KNOCK_INTERVAL_S_MAX = 0.02  # bounds what thousands of waiting ranks ask of rank 0's host
_KNOCK_TIMEOUT_S = 1.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, zero seconds


Change = tuple[str | None, str | None]
"""What a variable was before and after, None where it is not set."""


def become_worker(request: Fork, *, parent: int, warm: bool, changes: Mapping[str, Change] = EMPTY) -> NoReturn:
    """Run the request in this freshly forked process; `parent` is the process that forked it.

    `changes` are what imports of the parent did to its environment.
    """
    status = NOT_STARTED
    try:
        _settle(request, parent)
        if warm:
            apply(changes, os.environ)
        if request.kind is EntrypointKind.PROGRAM:
            os.execvpe(request.argv[0], request.argv, request.env)
        if not warm:
            flags = ["-m"] if request.kind is EntrypointKind.MODULE else []
            os.execve(sys.executable, [sys.executable, "-u", *flags, *request.argv], request.env)
        _reseed()
        make_stores_wait()
        if RUN_DIRECTORY_VARIABLE in request.env:
            note_spawns(Path(request.env[RUN_DIRECTORY_VARIABLE]))
        write_stacks_when_asked(request.env)
        note_signals(request.env)
        if request.learns:
            with contextlib.suppress(OSError):  # it is not learned from, and works all the same
                log = log_file(Path(request.env[RUN_DIRECTORY_VARIABLE]), os.getpid())
                sys.meta_path.insert(0, ImportLog(log, os.environ))
        ended_with = _run_main(request)
        # As an interpreter ends: threads are waited for, then exit functions run.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        status = ended_with
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, Change]:
    """What imports did to the environment."""
    names = sorted({*before, *after})
    pairs = {name: (before.get(name), after.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def apply(changes: Mapping[str, Change], environment: MutableMapping[str, str]) -> None:
    """Change what the imports changed, as they would have in the worker: where it starts from the same value."""
    for name, (before, after) in changes.items():
        if environment.get(name) != before:
            continue
        if after is None:
            environment.pop(name, None)
        else:
            environment[name] = after


def _settle(request: Fork, parent: int) -> None:
    os.setsid()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # What it starts stays below it when what started that ends, also with a session of its own: so the warm parent
    # knows what it leaves behind when it ends itself.
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The parent may have died before the line above took effect; then the signal never comes.
    if os.getppid() != parent:
        os._exit(NOT_STARTED)
    _LIBC.prctl(_PR_SET_NAME, request.name.encode()[:15], 0, 0, 0)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(output)
    # Whole lines reach the file at once, so that a killed worker's last words are there to read.
    sys.stdout, sys.stderr = (
        os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        for descriptor in (1, 2)
    )
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    sys.argv = list(request.argv)


def _reseed() -> None:
    """Give the worker a random state of its own; all children would share their parent's otherwise."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.seed()
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if threads.isdigit() and int(threads) > 1:
            torch.set_num_threads(int(threads))


def _run_main(request: Fork) -> int:
    """Run the user's program; the status that an interpreter would end with."""
    target = request.argv[0]
    try:
        if request.kind is EntrypointKind.MODULE:
            sys.path.insert(0, request.cwd)
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(target).resolve().parent))
            runpy.run_path(target, run_name="__main__")
    except SystemExit as request_to_exit:
        code = request_to_exit.code
        if code is None or isinstance(code, int):
            return (code or 0) & 0xFF
        sys.stderr.write(f"{code}\n")
        return FAILED
    except BaseException as error:
        shown = _user_part(error)
        sys.excepthook(type(error), error.with_traceback(shown), shown)
        _write_error_file(error)
        return 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else FAILED
    return 0


def _user_part(error: BaseException) -> TracebackType | None:
    """The traceback without the frames that lead from the fork to the user's code.

    A script that the compiler refuses has run none of it: its file and line are in the error itself.
    """
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    loaders = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
    refused = isinstance(error, SyntaxError)
    first = error.__traceback__
    while first is not None and first.tb_frame.f_code.co_filename in (*ours, *(loaders if refused else ())):
        first = first.tb_next
    return first if first is not None or refused else error.__traceback__


def _write_error_file(error: BaseException) -> None:
    """Say what happened where torch's elastic tools look for it; the script's own account has precedence.

    Source: torch.distributed.elastic.multiprocessing.errors,
    https://docs.pytorch.org/docs/stable/elastic/errors.html
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.path.exists(path):
        return
    extra = {
        "py_callstack": "".join(traceback.format_exception(error)),
        "timestamp": str(int(datetime.datetime.now(datetime.UTC).timestamp())),
    }
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    with contextlib.suppress(OSError):  # the log has it already
        Path(path).write_text(json.dumps({"message": message}))


def write_first_record(environment: Mapping[str, str], *, pid: int, now_ns: int) -> None:
    """Write the record of the worker that `environment` describes, in place of one a dead worker left.

    Its parent writes it before it does anything: who it is, and nothing about its training. A script that uses
    `holdfast.trainer` takes the record over. For one that does not it stays, and is how the agent knows the
    process of a rank: whether the kernel runs it, has stopped it, or has ended it. Its phase is IDLE, because of
    such a script nobody can say how long a step may take.

    `now_ns` is CLOCK_MONOTONIC. A process that is no rank of a round gets none. Raises OSError when the run
    directory cannot be written.
    """
    if RUN_DIRECTORY_VARIABLE not in environment:
        return
    round_, rank = int(environment["HOLDFAST_ROUND"]), int(environment["HOLDFAST_RANK"])
    step = StepZone(
        round=round_,
        rank=rank,
        local_rank=int(environment["LOCAL_RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        pid=pid,
        step=UNKNOWN_INT,
        phase=Phase.IDLE,
        phase_started_ns=now_ns,
        published_ns=now_ns,
        step_time_ns=UNKNOWN_INT,
        loss=None,
        grad_norm=None,
        tokens=UNKNOWN_INT,
        snapshot_step=UNKNOWN_INT,
    )
    replica = rankrecord.pack_replica(ReplicaZone(round_, rank, group=0, fingerprints=()))
    health = rankrecord.pack_health(HealthZone(round_, rank))
    proof = rankrecord.pack_proof(ProofZone(round_, rank, device=0, answers=()))
    pulse = rankrecord.PULSE.pack(UNKNOWN_INT, UNKNOWN_INT)
    record = bytearray(rankrecord.SIZE)
    record[: rankrecord.HEADER.size] = rankrecord.pack_header()
    for sequence_at, at, zone in (
        (rankrecord.STEP_SEQUENCE_OFFSET, rankrecord.STEP_OFFSET, rankrecord.pack_step(step)),
        (rankrecord.REPLICA_SEQUENCE_OFFSET, rankrecord.REPLICA_OFFSET, replica),
        (rankrecord.HEALTH_SEQUENCE_OFFSET, rankrecord.HEALTH_OFFSET, health),
        (rankrecord.PROOF_SEQUENCE_OFFSET, rankrecord.PROOF_OFFSET, proof),
        (rankrecord.PULSE_SEQUENCE_OFFSET, rankrecord.PULSE_OFFSET, pulse),
    ):
        rankrecord.SEQUENCE.pack_into(record, sequence_at, _UNLOCKED)
        record[at : at + len(zone)] = zone
    path = Path(environment[RUN_DIRECTORY_VARIABLE]) / record_file_name(step.local_rank)
    fresh = path.with_name(f"{path.name}.{pid}")
    fresh.write_bytes(record)
    os.replace(fresh, path)


def write_stacks_when_asked(environment: Mapping[str, str]) -> None:
    """Have this process write the stacks of its threads to a file in its run directory when it gets `SIGNAL`.

    It is written by C code that needs no lock of the interpreter, so also by a process whose Python never gets
    anywhere. Raises OSError when the run directory cannot be written.
    Source: https://docs.python.org/3/library/faulthandler.html#faulthandler.register
    """
    if RUN_DIRECTORY_VARIABLE not in environment:
        return
    path = Path(environment[RUN_DIRECTORY_VARIABLE]) / stacks_file_name(os.getpid())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    faulthandler.register(SIGNAL, file=descriptor, all_threads=True, chain=False)


def make_stores_wait() -> None:
    """Make a worker wait for its group's store in milliseconds instead of half seconds.

    Changes how `init_process_group` makes a client of the store, in this process only. Workers of a round start
    together, so most of them look for the store some milliseconds before rank 0 listens. torch's client then
    sleeps about half a second before it tries again (measured: 0.29 to 0.55 s for a store that was 10 to 100 ms
    late), which would be most of the time a recovery takes. Here a client first knocks, every few milliseconds,
    until somebody listens; what a knock leaves at the store is a connection that closes at once.
    """
    rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
    if rendezvous is None:
        return
    make_store = rendezvous.TCPStore

    def make_waiting_store(**given: Any) -> Any:
        if not given["is_master"]:
            timeout: datetime.timedelta = given["timeout"]
            wait_for_listener(given["host_name"], given["port"], timeout_s=timeout.total_seconds())
        return make_store(**given)

    rendezvous.TCPStore = make_waiting_store


def wait_for_listener(host: str, port: int, *, timeout_s: float) -> None:
    """Return once somebody listens there, or when waiting is of no use: torch's own attempt says why then."""
    give_up = time.monotonic() + timeout_s
    interval_s = _FIRST_KNOCK_S
    while time.monotonic() < give_up:
        try:
            with socket.create_connection((host, port), _KNOCK_TIMEOUT_S) as knock:
                if knock.getsockname() != knock.getpeername():
                    return
                # Nobody listens, but the kernel gave the knock the very port it knocks at, so it met itself. A
                # reset leaves nothing behind that would keep rank 0 from listening there.
                knock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        except (ConnectionRefusedError, TimeoutError):
            pass  # not yet
        except OSError:
            return
        time.sleep(interval_s)
        interval_s = min(1.5 * interval_s, _KNOCK_INTERVAL_S_MAX)
