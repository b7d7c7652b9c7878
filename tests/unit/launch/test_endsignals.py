"""Signals that ask a worker to end are noted as they reach it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.launch.endsignals import SHORTLY_S, EndSignals, note_signals, signals_file

SCRIPT = """
import os, signal, sys
from holdfast.agent.launch.endsignals import note_signals
note_signals(os.environ)
signals = [signal.Signals(int(number)) for number in sys.argv[2:]]
for number in signals:
    signal.signal(number, lambda *_: None)
if sys.argv[1] == "child":
    if (child := os.fork()) == 0:
        [signal.raise_signal(number) for number in signals]
        os._exit(0)
    os.waitpid(child, 0)
else:
    [signal.raise_signal(number) for number in signals]
print(os.getpid())
"""


def noted(run_dir: Path, who: str, *signals: int) -> int:
    """The process that got these signals, itself or in a child that it forked."""
    command = [sys.executable, "-c", SCRIPT, who, *map(str, map(int, signals))]
    environment = {**os.environ, "HOLDFAST_RUN_DIR": str(run_dir)}
    return int(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)


def taken(run_dir: Path, pid: int, *, later_s: float = 1.0) -> int | None:
    at = signals_file(run_dir, pid).stat().st_mtime
    return EndSignals(run_dir, clock=lambda: at + later_s).take(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_the_newest_that_asks_to_end_is_told_once(tmp_path: Path, number: signal.Signals) -> None:
    pid = noted(tmp_path, "itself", signal.SIGUSR2, number, signal.SIGALRM)
    assert taken(tmp_path, pid) == number
    assert list(tmp_path.iterdir()) == []
    assert EndSignals(tmp_path, clock=lambda: 0.0).take(pid) is None


def test_others_and_what_a_forked_child_got_do_not_count(tmp_path: Path) -> None:
    assert taken(tmp_path, noted(tmp_path, "itself", signal.SIGALRM, signal.SIGCHLD)) is None
    assert taken(tmp_path, noted(tmp_path, "child", signal.SIGTERM)) is None


def test_one_after_which_the_script_went_on_for_long_does_not_count(tmp_path: Path) -> None:
    assert taken(tmp_path, noted(tmp_path, "itself", signal.SIGUSR1), later_s=SHORTLY_S + 1.0) is None


def test_a_process_that_is_no_worker_notes_nothing() -> None:
    note_signals({})
    assert signal.set_wakeup_fd(-1) == -1
