"""The warm parent: a single-threaded process that has imported torch and forks workers on request.

Started by the launcher as `python -m holdfast.agent.launch.warm_parent FD PRELOAD [LIST [SCRIPT ...]]`. FD is its
end of a socket pair; when that ends, the launcher is gone (also by SIGKILL), so every worker is killed and the
process exits. LIST is the file that says what to import beside torch, for a script of these arguments.
"""

import contextlib
import ctypes
import gc
import importlib
import io
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast.agent.launch import forking, semaphores
from holdfast.agent.launch.child import Change, become_worker, changed, write_first_record
from holdfast.agent.launch.importtrial import ImportTrial
from holdfast.agent.launch.preload import (
    LEFT_MAX,
    UNIT_LIMIT_S,
    loaded_files,
    read_list,
    stamp_of,
    write_list,
)
from holdfast.api import stacks
from holdfast.api.decoding import decode
from holdfast.wire.frame import FrameReader, frame

log = logging.getLogger(__name__)

# Source: prctl(2), https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html
_PR_SET_CHILD_SUBREAPER = 36

MODULES = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data",
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.elastic.multiprocessing.errors",
    "holdfast.trainer",
    "holdfast.checkpoint",
)


class WarmParent:
    """Serves one launcher over `channel` until that ends."""

    def __init__(self, channel: socket.socket, changes: Mapping[str, Change] | None = None) -> None:
        """`changes` are what imports did to the environment: a worker makes them too."""
        self._channel = channel
        self._changes = changes or {}
        self._frames = FrameReader()
        self._decoder = msgspec.msgpack.Decoder(forking.ToWarmParent)
        self._encoder = msgspec.msgpack.Encoder()
        self._workers: set[int] = set()
        self._tokens: dict[int, str] = {}  # by worker, for the names of its semaphores
        self._fading: set[int] = set()  # ended, while others of their group may still be ending
        self._pid = os.getpid()
        self._ready = forking.Ready(warm=False)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self, ready: forking.Ready) -> None:
        """Say `ready`, then fork, kill and reap until the launcher is gone."""
        self._ready = ready
        # What workers leave behind comes here to be reaped. In a pod it would go to the first process, which is
        # the launcher, and stay a zombie.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Only the launcher ends this process: a signal meant for the whole terminal must not orphan workers.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        self._tell(ready)
        while True:
            awake = {descriptor for descriptor, _ in poller.poll()}
            if self._wake_read in awake:
                os.read(self._wake_read, 4096)
                self._reap()
            if self._channel.fileno() not in awake:
                continue
            try:
                data = self._channel.recv(1 << 16)
            except ConnectionError:
                return
            for payload in self._frames.feed(data):
                request = decode(self._decoder, payload)
                match request:
                    case forking.Fork():
                        self._fork(request)
                    case forking.Kill():
                        self._kill(request.pid)
                    case forking.Dump() if request.pid in self._workers:
                        os.kill(request.pid, stacks.SIGNAL)
            if not data:
                return

    def end_workers(self) -> None:
        """Kill every worker with its process group and what it left, and wait until the kernel has ended them."""
        for pid in self._workers:
            self._kill(pid)
        for pid in self._workers:
            os.waitpid(pid, 0)
        while orphans := children():  # what was below one of them becomes a child when that has ended
            _end(orphans)
            for pid in orphans:
                os.waitpid(pid, 0)
        for token in self._tokens.values():
            semaphores.remove(token)

    def _fork(self, request: forking.Fork) -> None:
        """The worker is known by its record before it does anything: the agent sees it wherever it stops."""
        token = semaphores.new_token()
        try:
            written_read, written_write = os.pipe()
            try:
                pid = os.fork()
            except OSError:
                os.close(written_read)
                os.close(written_write)
                raise
        except OSError as error:
            self._tell(forking.NotForked(request.ticket, f"no process could be started: {error}"))
            return
        if pid == 0:
            for descriptor in (self._wake_read, self._wake_write, written_write):
                os.close(descriptor)
            self._channel.close()
            os.read(written_read, 1)  # its end: the record is written, and the script may take it over
            os.close(written_read)
            semaphores.name_by(token)
            become_worker(request, parent=self._pid, warm=self._ready.warm, changes=self._changes)
        os.close(written_read)
        self._workers.add(pid)
        self._tokens[pid] = token
        try:
            write_first_record(request.env, pid=pid, now_ns=time.monotonic_ns())
        except OSError as error:
            log.warning("the first record of a worker cannot be written pid=%d error=%s", pid, error)
        finally:
            os.close(written_write)
        self._tell(forking.Forked(request.ticket, pid))

    def _kill(self, pid: int) -> None:
        if pid in self._workers and not _signal_group(pid, signal.SIGKILL):
            # It was forked a moment ago and has not made its own group yet.
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # none is left
            # Looked at before it is reaped: until then its process id and its group cannot be reused.
            while seen := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                at_ns, pid = time.monotonic_ns(), seen.si_pid
                if pid in self._workers:
                    _signal_group(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                # Others are orphans that workers left behind.
                if pid in self._workers:
                    self._workers.discard(pid)
                    code = os.waitstatus_to_exitcode(status)
                    exit_code, number = (code, None) if code >= 0 else (None, -code)
                    self._tell(forking.Ended(pid, at_ns, exit_code, number))
                    self._fading.add(pid)
        # A worker keeps what is below it as long as it lives (`child`), so these are of workers that are gone,
        # also those with a session of their own. What is below one of them comes here when that one is gone.
        orphans = children() - self._workers
        _end(orphans)
        # Orphans come here, so that each end that may be the last of a group is looked at.
        for pid in [pid for pid in self._fading if not orphans and not _signal_group(pid, 0)]:
            self._fading.discard(pid)
            semaphores.remove(self._tokens.pop(pid))
            self._tell(forking.GroupGone(pid))

    def _tell(self, message: forking.FromWarmParent) -> None:
        # Where the launcher is gone the next read of the channel finds its end.
        with contextlib.suppress(ConnectionError):
            self._channel.sendall(frame(self._encoder.encode(message)))


def children() -> set[int]:
    """The children of this process, which has one thread, those that have ended and are still to be reaped too.

    None where the kernel does not tell. Source: https://man7.org/linux/man-pages/man5/proc_pid_task.5.html
    (children, since Linux 3.5)
    """
    with contextlib.suppress(OSError):
        return {int(pid) for pid in Path("/proc/thread-self/children").read_text().split()}
    return set()


def _end(processes: set[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _signal_group(pid: int, number: int) -> bool:
    """Signal the process group of `pid`, 0 just to look; False when there is no such group."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return False
    return True


def preload() -> str:
    """Import what every script needs. Returns why this process must not fork warm workers, or nothing.

    Importing torch costs a worker one to three seconds, and the first optimizer it constructs about as much again
    because `torch.optim` imports its compiler parts only then. Both are paid once here. Nothing may touch CUDA (a
    CUDA context does not survive a fork) and no thread may be left running (a lock it holds would stay locked in
    every child).

    A module that cannot be imported is left to the workers: the script that needs it says so best.
    """
    missing = set()
    for name in MODULES:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken optional package must not take every worker's start with it
            log.info("not preloaded module=%s error=%r", name, error)
            missing.add(name)
    if "torch" in missing:
        return "torch cannot be imported"
    try:
        import torch

        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()
    except Exception as error:  # Half of a compiler is loaded now; workers do better with none of it.
        return f"torch cannot make an optimizer here: {error!r}"
    return ""


def season(path: Path, environment: Mapping[str, str], argv: Sequence[str] = ()) -> int:
    """Import what the list at `path` wants, and count the modules. Packages find `argv` in `sys.argv`.

    A package that this process must not hold is written into the list, and the process starts itself anew, with
    the environment that it had: nothing else takes back what an import has done.
    """
    wanted = read_list(path)
    if len(wanted.left) > LEFT_MAX:
        log.warning("imported nothing beforehand: %d packages had to be left", len(wanted.left))
        return 0
    trial = ImportTrial(path, UNIT_LIMIT_S, frozenset(wanted.changed))
    again = [sys.executable, "-m", "holdfast.agent.launch.warm_parent", *sys.argv[1:]]
    sys.argv = list(argv) or sys.argv
    try:
        with quiet():
            found = trial.run(wanted.units())
        if found is not None:
            write_list(path, wanted.leaving(*found))
            os.execve(sys.executable, again, environment)
    except OSError as error:
        log.warning("what is imported beforehand cannot be written down error=%s", error)
    for unit in trial.ignored:
        log.warning("not imported beforehand package=%s because=it is not installed, or is your own code", unit)
    return trial.loaded


@contextmanager
def quiet() -> Iterator[None]:
    """What packages print in the block is lost: there is no log that it belongs to, and it may be without end."""
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        for descriptor in (1, 2):
            os.dup2(nothing, descriptor)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for descriptor, own in zip((1, 2), kept, strict=True):
            os.dup2(own, descriptor)
        for each in (nothing, *kept):
            os.close(each)


def prepared(
    wanted: forking.Preload, path: Path | None, environment: Mapping[str, str], argv: Sequence[str] = ()
) -> forking.Ready:
    """Import what is wanted, and say what came of it. `environment` is the one that the process was given, `argv`
    the script with its arguments.
    """
    if wanted is forking.Preload.NOTHING:
        return forking.Ready(warm=True)
    reason = preload()
    loaded = season(path, environment, argv) if path is not None and not reason else 0
    files = loaded_files()
    # Source: https://man7.org/linux/man-pages/man5/proc_pid_task.5.html
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1 and not reason:
        reason = f"{threads} threads run after the imports, and only a single-threaded process can fork safely"
    # What is loaded now lives as long as the process: the collector need not visit, and so copy, its pages. Not
    # even once, for it would leave holes, which workers fill and so copy: of 314,000 objects 9,000 are garbage.
    # Source: https://docs.python.org/3/library/gc.html#gc.freeze
    gc.freeze()
    return forking.Ready(warm=not reason, reason=reason, loaded=loaded, files=files, stamp=stamp_of(files))


def main(descriptor: int, wanted: forking.Preload, path: Path | None = None, argv: Sequence[str] = ()) -> None:
    """Preload, serve, and end every worker before ending. `path` is the list's file, None without one."""
    # A package may keep this stream as it finds it: in a worker nobody would flush it, also not at its end.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    # `python -m` puts the working directory first on the path; a worker puts its own there.
    del sys.path[0]
    before = dict(os.environ)
    gc.disable()
    ready = prepared(wanted, path, before, argv)
    gc.enable()
    parent = WarmParent(socket.socket(fileno=descriptor), changed(before, os.environ))
    try:
        parent.serve(ready)
    finally:
        parent.end_workers()
        os._exit(0)


if __name__ == "__main__":
    listed = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    main(int(sys.argv[1]), forking.Preload(sys.argv[2]), listed, sys.argv[4:])
