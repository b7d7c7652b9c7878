"""The real warm parent with torch in it: what its children are like. It is started once for all tests."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil
import pytest
from launch_harness import no_process_left
from patience import patient

from holdfast.agent.launch.forking import (
    Ended,
    EntrypointKind,
    Fork,
    Forked,
    FromWarmParent,
    GroupGone,
    Kill,
    Ready,
)
from holdfast.agent.sensors.ranks import RankSensor
from holdfast.api.telemetry import ProcessState
from holdfast.wire.frame import FrameReader, frame


@dataclass
class Parent:
    """A warm parent process and the test's end of its channel."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    frames: FrameReader = field(default_factory=FrameReader)
    heard: list[FromWarmParent] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    tickets: int = 0
    ready: Ready = field(default_factory=lambda: Ready(warm=False))

    def tell(self, message: Fork | Kill) -> None:
        self.channel.sendall(frame(msgspec.msgpack.encode(message)))

    def hear(self) -> FromWarmParent:
        """The next thing said but that groups are gone, which comes when it comes."""
        while isinstance(said := self._next(), GroupGone):
            self.gone.add(said.pid)
        return said

    def hear_group_gone(self, pid: int) -> None:
        while pid not in self.gone:
            said = self._next()
            assert isinstance(said, GroupGone)
            self.gone.add(said.pid)

    def _next(self) -> FromWarmParent:
        while not self.heard:
            data = self.channel.recv(1 << 16)
            assert data, "the warm parent closed its channel"
            self.heard += [msgspec.msgpack.decode(body, type=FromWarmParent) for body in self.frames.feed(data)]
        return self.heard.pop(0)

    def fork(
        self,
        folder: Path,
        *argv: str,
        kind: EntrypointKind = EntrypointKind.SCRIPT,
        learns: bool = False,
        **env: str,
    ) -> Forked:
        self.tickets += 1
        given = {**os.environ, **env}
        self.tell(Fork(self.tickets, "rank7", kind, argv, given, str(folder), str(folder / "log"), learns))
        forked = self.hear()
        assert isinstance(forked, Forked)
        assert forked.ticket == self.tickets
        return forked

    def run(self, folder: Path, *argv: str, kind: EntrypointKind = EntrypointKind.SCRIPT, **env: str) -> Ended:
        forked = self.fork(folder, *argv, kind=kind, **env)
        ended = self.hear()
        assert isinstance(ended, Ended)
        assert ended.pid == forked.pid
        return ended


def start_parent(wanted: Path | None = None, *script: str, **variables: str) -> Parent:
    """`wanted` is the file of what to import beside torch, for a script of these arguments."""
    ours, theirs = socket.socketpair()
    ours.settimeout(patient(60))
    command = [sys.executable, "-m", "holdfast.agent.launch.warm_parent", str(theirs.fileno()), "torch"]
    command += [] if wanted is None else [str(wanted), *script]
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, start_new_session=True)
    theirs.close()
    return Parent(process, ours)


@pytest.fixture(scope="module")
def parent() -> Iterator[Parent]:
    parent = start_parent()
    ready = parent.hear()
    assert isinstance(ready, Ready)
    assert (ready.warm, ready.reason, ready.loaded) == (True, "", 0)
    yield parent
    parent.channel.close()
    parent.process.wait(timeout=patient(10))


def write(folder: Path, text: str, name: str = "script.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def log(folder: Path) -> str:
    return (folder / "log").read_text()


@pytest.mark.parametrize(
    "makes",
    [
        "locks = [multiprocessing.get_context('spawn').Lock()]",
        "queue = multiprocessing.get_context('forkserver').Queue(); locks = [queue._rlock, queue._wlock]",
        "multiprocessing.set_start_method('spawn'); locks = [multiprocessing.Event()._cond._lock]",
    ],
)
def test_a_killed_worker_leaves_no_semaphores(parent: Parent, tmp_path: Path, makes: str) -> None:
    lines = [
        "import multiprocessing, os, signal",
        makes,
        "print(*(each._semlock.name for each in locks), flush=True)",
        "os.killpg(0, signal.SIGKILL)  # with the process that would remove them",
    ]
    ended = parent.run(tmp_path, write(tmp_path, "\n".join(lines)))
    assert ended.signal == signal.SIGKILL, log(tmp_path)
    parent.hear_group_gone(ended.pid)
    names = log(tmp_path).split()
    assert names
    assert [name for name in names if Path(f"/dev/shm/sem.{name[1:]}").exists()] == []


def test_the_warm_parent_has_one_thread(parent: Parent) -> None:
    assert psutil.Process(parent.process.pid).num_threads() == 1


def test_a_script_finds_torch_imported_and_itself_as_main(parent: Parent, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    script = write(
        tmp_path,
        "import sys\n"
        "assert 'torch' in sys.modules\n"
        "import beside, pickle\n"
        "class Mine: pass\n"
        "print(__name__, sys.argv[1:], beside.NAME, type(pickle.loads(pickle.dumps(Mine()))) is Mine)\n",
    )
    assert parent.run(tmp_path, script, "--config", "7b.toml").exit_code == 0
    assert log(tmp_path) == "__main__ ['--config', '7b.toml'] beside True\n"


def test_a_module_is_run_as_python_m_runs_it(parent: Parent, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    write(tmp_path, "import sys\nprint(__name__, __spec__.name, sys.argv[1:])\n", "package/__main__.py")
    assert parent.run(tmp_path, "package", "x", kind=EntrypointKind.MODULE).exit_code == 0
    assert log(tmp_path) == "__main__ package.__main__ ['x']\n"


def test_a_program_is_executed_plainly(parent: Parent, tmp_path: Path) -> None:
    ended = parent.run(tmp_path, "sh", "-c", "echo $RANK; exit 5", kind=EntrypointKind.PROGRAM, RANK="3")
    assert ended.exit_code == 5
    assert log(tmp_path) == "3\n"


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("sys.exit()", 0),
        ("sys.exit(7)", 7),
        ("sys.exit('no such config')", 1),
        ("raise SystemExit(256 + 9)", 9),
        ("raise KeyboardInterrupt", 130),
        ("os._exit(4)", 4),
    ],
)
def test_exit_statuses_are_those_of_an_interpreter(
    parent: Parent, tmp_path: Path, ending: str, status: int
) -> None:
    assert parent.run(tmp_path, write(tmp_path, f"import os, sys\n{ending}\n")).exit_code == status


def test_an_exception_is_shown_and_left_for_elastic_tools(parent: Parent, tmp_path: Path) -> None:
    script = write(tmp_path, "def step():\n    raise ValueError('loss is nan')\nstep()\n")
    error_file = tmp_path / "error.json"
    assert parent.run(tmp_path, script, TORCHELASTIC_ERROR_FILE=str(error_file)).exit_code == 1
    lines = log(tmp_path).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{script}", line 3, in <module>'
    assert lines[-1] == "ValueError: loss is nan"
    message = json.loads(error_file.read_text())["message"]
    assert message["message"] == "ValueError: loss is nan"
    assert "in step" in message["extraInfo"]["py_callstack"]


def test_a_missing_script_says_so(parent: Parent, tmp_path: Path) -> None:
    assert parent.run(tmp_path, str(tmp_path / "missing.py")).exit_code == 1
    assert "No such file or directory" in log(tmp_path)


def test_exit_functions_and_threads_are_waited_for(parent: Parent, tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import atexit, threading\n"
        "go = threading.Event()\n"
        "def work():\n    go.wait()\n    print('thread done')\n"
        "threading.Thread(target=work).start()\n"
        "atexit.register(print, 'exit function')\n"
        "print('main done')\n"
        "threading.Timer(0.05, go.set).start()\n",
    )
    assert parent.run(tmp_path, script).exit_code == 0
    assert log(tmp_path).splitlines() == ["main done", "thread done", "exit function"]


def test_every_worker_has_random_numbers_of_its_own(parent: Parent, tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), float(torch.rand(())))\n",
    )
    for _ in range(2):
        assert parent.run(tmp_path, script).exit_code == 0
    first, second = (line.split() for line in log(tmp_path).splitlines())
    assert not set(first) & set(second)


def test_a_worker_is_its_own_session_with_default_signals_and_the_threads_it_asks_for(
    parent: Parent, tmp_path: Path
) -> None:
    script = write(
        tmp_path,
        "import os, signal, sys, torch\n"
        "assert os.getsid(0) == os.getpid()\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "assert sys.stdin.read() == ''\n"
        "print(torch.get_num_threads(), open('/proc/self/comm').read().strip())\n",
    )
    assert parent.run(tmp_path, script, OMP_NUM_THREADS="2").exit_code == 0
    assert log(tmp_path) == "2 rank7\n"


def test_data_loader_workers_run_in_either_way_of_starting_them(parent: Parent, tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "from torch.utils.data import DataLoader\n"
        "class Numbers:\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, i): return i\n"
        "if __name__ == '__main__':\n"
        "    for way in ('fork', 'spawn'):\n"
        "        loader = DataLoader(Numbers(), num_workers=1, multiprocessing_context=way)\n"
        "        print(way, sum(int(x) for x in loader))\n",
    )
    assert parent.run(tmp_path, script).exit_code == 0, log(tmp_path)
    assert log(tmp_path).splitlines() == ["fork 6", "spawn 6"]


def test_a_kill_reaches_a_stopped_worker_and_its_children(parent: Parent, tmp_path: Path) -> None:
    script = write(
        tmp_path,
        "import os, signal, subprocess\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n",
    )
    forked = parent.fork(tmp_path, script)
    worker = psutil.Process(forked.pid)
    while worker.status() != psutil.STATUS_STOPPED:
        assert worker.is_running()
    child = psutil.Process(int(log(tmp_path)))
    parent.tell(Kill(forked.pid))
    ended = parent.hear()
    assert isinstance(ended, Ended)
    assert (ended.exit_code, ended.signal) == (None, signal.SIGKILL)
    parent.hear_group_gone(forked.pid)
    assert not child.is_running()


def test_killing_what_is_no_worker_changes_nothing(parent: Parent, tmp_path: Path) -> None:
    parent.tell(Kill(os.getpid()))
    assert parent.run(tmp_path, write(tmp_path, "")).exit_code == 0


async def test_a_killed_warm_parent_takes_its_workers_along(tmp_path: Path) -> None:
    parent = start_parent()
    assert isinstance(parent.hear(), Ready)
    worker = psutil.Process(parent.fork(tmp_path, write(tmp_path, "import time\ntime.sleep(600)\n")).pid)
    parent.process.kill()
    parent.process.wait()
    await no_process_left([worker])
    parent.channel.close()


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), signal.SIGKILL)\n"])
def test_what_a_worker_leaves_behind_ends_with_it_also_in_a_session_of_its_own(
    parent: Parent, tmp_path: Path, ending: str
) -> None:
    daemon = f"setsid sh -c 'sleep 600 & echo $! > {tmp_path}/daemon; sleep 600' &"
    script = write(
        tmp_path,
        "import os, signal, subprocess, time\n"
        "subprocess.Popen(['sleep', '600'])\n"
        f"subprocess.run({daemon!r}, shell=True)\n"
        f"while not (os.path.exists({f'{tmp_path}/daemon'!r}) and open({f'{tmp_path}/daemon'!r}).read()):\n"
        "    time.sleep(0.01)\n"
        f"{ending}",
    )
    ended = parent.run(tmp_path, script)
    parent.hear_group_gone(ended.pid)
    assert not psutil.pid_exists(int((tmp_path / "daemon").read_text()))
    assert psutil.Process(parent.process.pid).children() == []


def test_what_one_worker_leaves_behind_ends_and_what_another_one_runs_goes_on(
    parent: Parent, tmp_path: Path
) -> None:
    stays = write(
        tmp_path,
        "import os, subprocess, time\n"
        "subprocess.run('setsid sleep 600 &', shell=True)\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n",
        "stays.py",
    )
    forked = parent.fork(tmp_path, stays)
    (tmp_path / "log").touch()
    while "started" not in log(tmp_path):
        assert psutil.pid_exists(forked.pid)
    worker = psutil.Process(forked.pid)
    while not (below := [each for each in worker.children() if each.name() in ("sleep", "setsid")]):
        assert worker.is_running()  # the child is there, and still to become the program
    parent.run(tmp_path, write(tmp_path, "import subprocess\nsubprocess.run('setsid sleep 600 &', shell=True)\n"))
    assert below[0].is_running()
    parent.tell(Kill(forked.pid))
    parent.hear()
    parent.hear_group_gone(forked.pid)
    assert not below[0].is_running()


def test_what_a_script_spawns_itself_is_noted_with_its_own_line_while_it_lasts(
    parent: Parent, tmp_path: Path
) -> None:
    script = write(
        tmp_path,
        "import glob, os, sys, torch.multiprocessing as mp\n"
        "def work(rank, folder):\n    print(open(glob.glob(folder + '/spawned-*')[0]).read(), flush=True)\n"
        "if __name__ == '__main__':\n"
        "    mp.spawn(work, (os.environ['HOLDFAST_RUN_DIR'],), nprocs=1)\n"
        "    print(glob.glob(os.environ['HOLDFAST_RUN_DIR'] + '/spawned-*'))\n",
    )
    ranked = {"HOLDFAST_ROUND": "1", "HOLDFAST_RANK": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    ended = parent.run(tmp_path, script, HOLDFAST_RUN_DIR=str(tmp_path), **ranked)
    assert ended.exit_code == 0, log(tmp_path)
    assert log(tmp_path).splitlines() == ['{"place":"script.py:5 in <module>","processes":1}', "[]"]


@pytest.mark.parametrize("what", ["before it does anything", "at its entry", "in its imports"])
def test_a_worker_that_is_stopped_is_seen_stopped_wherever_that_was(
    parent: Parent, tmp_path: Path, what: str
) -> None:
    ranked = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "HOLDFAST_ROUND": "7", "HOLDFAST_RANK": "3"}
    folder, sensor = tmp_path / "run", RankSensor(str(tmp_path / "run"))
    folder.mkdir()
    script = write(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    if what == "before it does anything":
        os.mkfifo(tmp_path / "log")  # whoever opens it waits for a reader
    if what == "in its imports":
        write(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "slow.py")
        script = write(tmp_path, "import slow")
    forked = parent.fork(tmp_path, script, **ranked, HOLDFAST_RUN_DIR=str(folder))
    (rank,) = sensor.read(time.monotonic()).ranks  # at once: nothing of the worker's is waited for
    assert (rank.pid, rank.rank, rank.round) == (forked.pid, 3, 7)
    if what == "before it does anything":
        os.kill(forked.pid, signal.SIGSTOP)
    while rank.process is not ProcessState.STOPPED:
        (rank,) = sensor.read(time.monotonic()).ranks
    parent.tell(Kill(forked.pid))
    parent.hear()
    assert sensor.read(time.monotonic()).ranks[0].process is ProcessState.GONE
    sensor.close()


def test_a_run_directory_that_cannot_be_written_costs_the_record_and_not_the_worker(
    parent: Parent, tmp_path: Path
) -> None:
    ranked = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "HOLDFAST_ROUND": "7", "HOLDFAST_RANK": "3"}
    program = write(tmp_path, "print('it runs')")
    kind = EntrypointKind.PROGRAM
    ended = parent.run(
        tmp_path, sys.executable, program, kind=kind, **ranked, HOLDFAST_RUN_DIR=str(tmp_path / "away")
    )
    assert (ended.exit_code, log(tmp_path)) == (0, "it runs\n")
