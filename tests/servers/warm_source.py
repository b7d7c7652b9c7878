"""A process that imports torch once and forks the warm parents of all runs of a test session.

Importing takes three seconds of a processor, for each node of each run: more than all the rest of a short run.
What is forked runs the warm parent's own `main`, so a launcher meets the same program; only its ancestors differ.
Tests of how a warm parent starts, or of which processes a run leaves, do without: see `warm_parents_of_their_own`.
"""

import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from patience import patient

from holdfast.agent.launch.forking import Preload
from holdfast.agent.launch.warm_parent import main, preload

ADDRESS = "WARM_PARENTS_FROM"
FORKS = "PARTS_ARE_FORKED"  # of runs, see `warm_start/forked_parts.py`
SITE = Path(__file__).parent / "warm_start"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as the launcher gives a warm parent
# What has its effect when a process starts or imports, and so cannot be taken over by one that has done both.
EARLY = ("CUDA", "LD_", "MKL", "OMP", "OPENBLAS", "PYTHON", "TORCH")


@contextmanager
def warm_source() -> Iterator[Mapping[str, str]]:
    """Start one. Gives the environment in which runs get their warm parents from it."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"{folder}/source"
        paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {ADDRESS: address, FORKS: "1", "PYTHONPATH": os.pathsep.join(paths)}
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen()
            process = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                stdin=subprocess.PIPE,
                env={**os.environ, **environment, **ONE_THREAD},
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        try:
            yield environment
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(patient(20))


def warm_parents_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what this test starts import torch itself, as it would anywhere else."""
    monkeypatch.delenv(ADDRESS)
    parts_of_their_own(monkeypatch)


def parts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs that this test starts start each of their parts anew, with a command line of its own."""
    monkeypatch.delenv(FORKS, raising=False)


class Source:
    """Forks at each request, and ends what it forked when the process that stands in for it is killed."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._early = _early(os.environ)  # before torch adds to it
        self._imported = False
        self._stand_ins: dict[int, socket.socket] = {}  # by the process that was forked for it
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Until the tests have ended, which is the end of the standard input."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            waiting = [sys.stdin.fileno(), self._wake_read, self._listener, *self._stand_ins.values()]
            awake = select.select(waiting, [], [])[0]
            if sys.stdin.fileno() in awake:
                break
            if self._wake_read in awake:
                os.read(self._wake_read, 4096)
            for pid, stand_in in list(self._stand_ins.items()):
                if stand_in in awake:  # it says nothing: it was killed
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if self._listener in awake:
                self._take(self._listener.accept()[0])
        for pid in self._stand_ins:
            os.kill(pid, signal.SIGKILL)

    def _take(self, stand_in: socket.socket) -> None:
        asked, descriptors, _, _ = socket.recv_fds(stand_in, 1 << 20, 4)
        if not asked:
            return
        wanted = json.loads(asked)
        if _early(wanted["env"]) == self._early:
            self._import_once()
            with suppress(OSError):  # it was killed meanwhile
                stand_in.send(b"taken")
                self._fork(stand_in, wanted["env"], wanted["cwd"], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _import_once(self) -> None:
        """What a warm parent imports. Each fork asks for it again, and finds everything there."""
        if not self._imported:
            preload()
            gc.freeze()  # else each fork's collector visits, and so copies, all of it: a third of a second
            self._imported = True

    def _fork(self, stand_in: socket.socket, env: Mapping[str, str], cwd: str, descriptors: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                self._become_warm_parent(env, cwd, descriptors)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        self._stand_ins[pid] = stand_in

    def _become_warm_parent(self, env: Mapping[str, str], cwd: str, descriptors: list[int]) -> None:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        channel, *standard = descriptors
        for number, descriptor in enumerate(standard):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for each in (self._listener, *self._stand_ins.values()):
            each.close()
        sys.path.insert(0, cwd)  # as `python -m` does
        main(channel, Preload.TORCH)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with self._stand_ins.pop(ended[0]) as stand_in, suppress(OSError):
                    stand_in.send(str(os.waitstatus_to_exitcode(ended[1])).encode())


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(EARLY)}


if __name__ == "__main__":
    gc.disable()
    Source(socket.socket(fileno=int(sys.argv[1]))).serve()
