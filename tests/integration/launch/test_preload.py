"""What a warm parent imports beforehand: what it may hold, what it leaves, and what becomes of its workers.

The packages are small ones, installed into a folder that is named as an installed one is.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patient
from test_warm_parent import Parent, log, start_parent, write

from holdfast.agent.launch.forking import Ready
from holdfast.agent.launch.importlog import log_file, names_in, variables_in
from holdfast.agent.launch.preload import PreloadList, leave_what_killed, read_list, stamp_of, write_list
from holdfast.api.control import RUN_DIRECTORY_VARIABLE

RANKED = {"HOLDFAST_ROUND": "1", "HOLDFAST_RANK": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
PACKAGES = {
    "good": "import os\nimport good.part\nos.environ.setdefault('GOOD_SAYS', 'hello')\nLOADED_IN = os.getpid()\n",
    "good/part": "",
    "asks": "import importlib.util\nTHERE = importlib.util.find_spec('good') is not None\n",
    "optional": "try:\n    import not_there\nexcept ImportError:\n    pass\n",
    "speaks": "import sys\nprint('imported')\nOUT, ARGUMENTS = sys.stdout, list(sys.argv)\n",
    "reads_rank": "import os\nos.environ['READS_RANK'] = 'yes'\nRANK = int(os.environ.get('LOCAL_RANK', 0))\n",
    "reads_home": "import os\nHOME = os.getenv('HOME_OF_IT', 'usual')\n",
    "sets_home": "import os\nif 'HOME_OF_IT' not in os.environ:\n    os.environ['HOME_OF_IT'] = 'own'\n",
    "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
    "device": "DEVICE = open('/dev/dri/card0')\n",
    "connects": "import socket\nHELD = socket.socket()\n",
    "starts": "import subprocess\nHELD = subprocess.Popen(['sleep', '600'])\n",
    "handles": "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n",
    "alarms": "import signal\nsignal.signal(signal.SIGALRM, lambda *_: None)\nsignal.alarm(600)\n",
    "moves": "import os\nos.chdir('/')\n",
    "ends": "import sys\nsys.exit(3)\n",
    "breaks": "raise ValueError('not today')\n",
    "sleeps": "import time\ntime.sleep(600)\n",
    "dies": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
}
# Each package on a trial of its own, in a process of its own: a file that is called as a device is stands for one.
TRIALS = """
import os, re, sys
from pathlib import Path
from holdfast.agent.launch import importtrial

importtrial._DEVICES = re.compile(re.escape(sys.argv[1]) + "/dev/")
for unit in sys.argv[3:]:
    if os.fork() == 0:
        limit_s = 0.2 if unit == "sleeps" else float(sys.argv[2])
        trial = importtrial.ImportTrial(Path(sys.argv[1]) / f"{unit}.json", limit_s, frozenset({"HOME_OF_IT"}))
        found = trial.run({unit: (unit,)})
        print(unit, found and found[1].replace(sys.argv[1], ""), trial.loaded, sep=": ", flush=True)
        os.system("kill $(cat /proc/$PPID/task/$PPID/children) 2> /dev/null")
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preload")
    (folder / "dev").mkdir()
    (folder / "dev" / "card0").touch()
    for name, text in PACKAGES.items():
        path = folder / "site-packages" / name / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("/dev/dri", f"{folder}/dev"))
    (folder / "mine").mkdir()
    write(folder, "print('imported')\n", "mine/own.py")
    return folder


@pytest.fixture(scope="module")
def parent(place: Path) -> Iterator[Parent]:
    write_list(
        place / "list.json", PreloadList(("good", "good.part", "reads_rank", "asks", "speaks", "not_there", "own"))
    )
    path = os.pathsep.join((str(place / "site-packages"), str(place / "mine")))
    parent = start_parent(place / "list.json", "train.py", "--lr", "3", PYTHONPATH=path)
    ready = parent.hear()
    assert isinstance(ready, Ready)
    assert ready.warm, ready.reason
    parent.ready = ready
    yield parent
    parent.channel.close()
    parent.process.wait(timeout=patient(10))


def test_what_a_forked_worker_must_not_inherit_is_found_out_by_a_trial(place: Path) -> None:
    units = [name for name in PACKAGES if "/" not in name]
    ran = subprocess.run(
        [sys.executable, "-c", TRIALS, str(place), str(patient(10)), *units],
        env={**os.environ, "PYTHONPATH": str(place / "site-packages")},
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=True,
    )
    assert ran.stdout.splitlines() == [
        "good: None: 1",
        "asks: None: 1",
        "optional: None: 1",
        "imported",
        "speaks: None: 1",
        "reads_rank: its import reads LOCAL_RANK: 1",
        "reads_home: its import reads HOME_OF_IT, which the script sets before: 1",
        "sets_home: None: 1",
        "threads: it leaves 1 threads running: 1",
        "device: it opens /dev/card0: 1",
        "connects: it opens a connection: 1",
        "starts: it starts a process: 1",
        "handles: it changes what is done on a signal: 1",
        "alarms: it changes what is done on a signal: 1",
        "moves: it changes the working directory: 1",
        "ends: its import fails: SystemExit(3): 0",
        "breaks: its import fails: ValueError('not today'): 0",
        "sleeps: its import takes more than 0.2 s: 0",
    ], ran.stderr
    write_list(place / "dies.json", PreloadList(("dies", "good")))
    leave_what_killed(place / "dies.json")
    assert read_list(place / "dies.json").units() == {"good": ("good",)}


def test_what_is_left_is_written_down_with_the_reason(parent: Parent, place: Path) -> None:
    assert read_list(place / "list.json").left == {"reads_rank": "its import reads LOCAL_RANK"}
    assert parent.ready.loaded == 4


def test_a_worker_finds_it_imported_with_what_the_import_did_to_the_environment(
    parent: Parent, tmp_path: Path
) -> None:
    script = write(
        tmp_path,
        "import os, sys\n"
        "print([name for name in ('good', 'good.part', 'asks', 'reads_rank', 'own') if name in sys.modules])\n"
        "print(os.environ['GOOD_SAYS'], 'READS_RANK' in os.environ)\n"
        "import good, reads_rank\n"
        "print(good.LOADED_IN == os.getppid(), reads_rank.RANK)\n",
    )
    assert parent.run(tmp_path, script, LOCAL_RANK="3").exit_code == 0, log(tmp_path)
    assert log(tmp_path).splitlines() == ["['good', 'good.part', 'asks']", "hello False", "True 3"]


def test_a_worker_that_says_otherwise_keeps_its_own_environment(parent: Parent, tmp_path: Path) -> None:
    script = write(tmp_path, "import os\nprint(os.environ['GOOD_SAYS'])\n")
    assert parent.run(tmp_path, script, GOOD_SAYS="bye").exit_code == 0
    assert log(tmp_path) == "bye\n"


def test_a_package_finds_the_scripts_arguments_and_what_it_writes_later_is_in_the_log(
    parent: Parent, tmp_path: Path
) -> None:
    script = write(
        tmp_path,
        "import os, sys, speaks\nprint(speaks.ARGUMENTS)\nspeaks.OUT.write('said\\n')\nos.kill(os.getpid(), 9)\n",
    )
    parent.run(tmp_path, script)
    assert log(tmp_path).splitlines() == ["['train.py', '--lr', '3']", "said"]


def test_a_package_that_is_installed_anew_shows_in_the_stamp(parent: Parent, place: Path) -> None:
    ready = parent.ready
    assert any(file.endswith("good/__init__.py") for file in ready.files)
    assert stamp_of(ready.files) == ready.stamp
    fresh = place / "site-packages" / "good" / "fresh.py"
    fresh.write_text(PACKAGES["good"])
    os.replace(fresh, fresh.with_name("__init__.py"))
    assert stamp_of(ready.files) != ready.stamp


def test_a_worker_writes_what_it_imports_and_not_what_it_only_asks_for(parent: Parent, tmp_path: Path) -> None:
    # Somebody who makes a daemon closes all that is open, and has the numbers for files of their own then.
    closes = "import os\nos.closerange(3, 256)\nMINE = [open(f'mine-{number}', 'w') for number in range(9)]\n"
    asks = f"{closes}import importlib.util\nimportlib.util.find_spec('tarfile')\nimport other\n"
    (tmp_path / "beside.py").write_text(asks)
    (tmp_path / "other.py").touch()
    sets = "os.environ['HF_HOME'] = '/data'\ndel os.environ['RANK']\n"
    script = write(tmp_path, f"import os\n{sets}import beside\nos.kill(os.getpid(), 9)\n")
    variables = {RUN_DIRECTORY_VARIABLE: str(tmp_path), **RANKED}
    forked = parent.fork(tmp_path, script, learns=True, **variables)
    parent.hear()
    assert names_in(log_file(tmp_path, forked.pid)) == ("beside", "other")
    assert variables_in(log_file(tmp_path, forked.pid)) == ("HF_HOME", "RANK")
    assert [path.name for path in tmp_path.glob("mine-*") if path.read_text()] == []
