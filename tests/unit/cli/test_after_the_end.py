"""`status`, `ranks` and `nodes` of a run that is over: the last that was known, and never that it runs."""

import json
import os
from datetime import datetime
from pathlib import Path

import pytest
from fakekubernetes import JOBS, PROXY, a_job, fake_kubernetes
from fakewatchdog import fake_watchdog, lay_out
from wireobjects import JOB, a_rank, a_status

from holdfast.api.errors import Unavailable
from holdfast.api.event import JobSubmitted
from holdfast.api.policy import Policy
from holdfast.api.status import Hearing, JobPhase, LastSeen, NodeStatus
from holdfast.api.telemetry import GpuHealth, GpuSample
from holdfast.cli.main import answer
from holdfast.cli.statedirectory import StateDirectory, is_over, run_lock
from holdfast.cli.target import Program
from holdfast.watchdog.journal.lastseen import keep
from holdfast.watchdog.store.sqlite import SqliteStore

ENDED_AT = 1_700_000_000.0
CLOCK = f"{datetime.fromtimestamp(ENDED_AT):%Y-%m-%d %H:%M:%S}"
NODE = NodeStatus("node-1", 0.2, (GpuSample("GPU-1", 0, GpuHealth.HEALTHY, temperature_c=60.0),))
NOBODY = str(2**22 + 1)  # beyond the kernel's largest process number
# Source: https://man7.org/linux/man-pages/man5/proc_sys_kernel.5.html (pid_max)


def a_run(root: Path, *, phase: JobPhase = JobPhase.SUCCEEDED, is_kept: bool = True) -> list[str]:
    """The state directory of a run that is over, and the flag that names it."""
    directory = lay_out(root, port=1)
    directory.lock_file.write_text(NOBODY)
    store = SqliteStore(directory.store_file)
    fence = store.claim()
    (line,) = store.append(JOB, [JobSubmitted(Policy(JOB, 1, 1))], at=ENDED_AT, after=0, fence=fence)
    if is_kept:
        ended_at = ENDED_AT if phase in (JobPhase.SUCCEEDED, JobPhase.FAILED) else None
        status = a_status(phase=phase, reason="so it was", ended_at=ended_at)
        last = LastSeen(ENDED_AT, status, (a_rank(0), a_rank(1)), (NODE,))
        keep(store, last, offset=line.offset, fence=fence)
    store.close()
    return ["--state-dir", str(root)]


@pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.FAILED])
def test_a_run_that_ended_says_how_and_when(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], phase: JobPhase
) -> None:
    flags = a_run(tmp_path, phase=phase)
    assert answer(["status", *flags]) == 0
    said = capsys.readouterr().out
    assert f"phase          {phase} (so it was)\n" in said
    assert f"ended          {CLOCK}\n" in said
    assert "step           120\n" in said
    assert "loss           2.3457\n" in said
    assert answer(["status", "-o", "json", *flags]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["source"], shown["ended_at"], shown["phase"]) == ("store", ENDED_AT, phase.value)


def test_a_run_that_was_stopped_before_its_end_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = a_run(tmp_path, phase=JobPhase.RUNNING)
    assert answer(["status", "-o", "wide", *flags]) == 0
    said = capsys.readouterr().out
    assert "phase          Stopped (it was interrupted after step 120; `holdfast run` goes on with it)\n" in said
    assert f"ended          {CLOCK}\n" in said
    assert "said by        the state directory of the run, which is over" in said


def test_ranks_and_nodes_are_the_last_that_was_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = a_run(tmp_path)
    assert answer(["ranks", "-o", "json", *flags]) == 0
    said = capsys.readouterr()
    assert said.err == f"holdfast: {JOB} ended {CLOCK}, Succeeded; this is what was last known\n"
    first = json.loads(said.out)[0]
    assert (first["step"], first["loss"], first["node"], first["process"]) == (120, 2.3, "node-1", "Unknown")
    assert first["heard_age_s"] > 1e6
    assert answer(["nodes", "-o", "json", *flags]) == 0
    said = capsys.readouterr()
    assert "this is what was last known" in said.err
    (node,) = json.loads(said.out)
    assert (node["hearing"], node["gpus"][0]["temperature_c"]) == (Hearing.ENDED.value, 60.0)
    assert answer(["nodes", *flags]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("of a job that is over")


def test_a_run_that_was_killed_is_told_from_its_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = a_run(tmp_path, is_kept=False)
    assert answer(["status", *flags]) == 0
    assert "phase          Stopped (it was interrupted while it was Pending" in capsys.readouterr().out
    for command in ("ranks", "nodes"):
        assert answer([command, *flags]) == 0
        assert "Stopped; this is what was last known" in capsys.readouterr().err


def test_a_directory_without_a_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(tmp_path, port=1)
    for command in ("status", "ranks", "nodes"):
        assert answer([command, "--state-dir", str(tmp_path)]) == 3
    capsys.readouterr()
    a_run(tmp_path / "empty", is_kept=False)
    for each in (tmp_path / "empty").glob("watchdog.db*"):
        each.unlink()
    SqliteStore(tmp_path / "empty" / "watchdog.db").close()
    assert answer(["ranks", "--state-dir", str(tmp_path / "empty")]) == 3
    assert "ended before its job was submitted" in capsys.readouterr().err


def test_a_run_that_lives_is_never_taken_for_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its watchdog died and is being started again: what the store has is not the end."""
    flags = a_run(tmp_path)
    with run_lock(StateDirectory(tmp_path)):
        for command in ("status", "ranks", "nodes"):
            assert answer([command, *flags]) == 3
            assert "is the run alive?" in capsys.readouterr().err
        assert not is_over(StateDirectory(tmp_path))
    assert is_over(StateDirectory(tmp_path)), "this process lives, but holds the directory no more"


def test_a_run_of_another_machine_is_not_judged_by_the_processes_of_this_one(tmp_path: Path) -> None:
    """The state directory of a run on Slurm, read on a login node, where no process has the run's number."""
    directory = lay_out(tmp_path, port=1)
    with run_lock(directory):
        directory.lock_file.write_text("4194305 node-7\n")
        assert not is_over(directory), "its machine holds the lock"
    directory.lock_file.write_text("4194305 node-7\n")
    assert is_over(directory), "its machine was lost, and the file server gave its lock back"
    with run_lock(directory):
        assert not is_over(directory)
        us = f"pid {os.getpid()} on {os.uname().nodename}"
        with pytest.raises(Unavailable, match=us), run_lock(directory, within_s=0.0):
            raise AssertionError("two runs hold it")
    assert directory.lock_file.read_text() == "", "any machine sees that it ended"


def test_another_process_of_the_same_number_is_no_run(tmp_path: Path) -> None:
    directory = lay_out(tmp_path, port=1)
    assert not is_over(directory), "no run ever held it"
    directory.lock_file.write_text(str(os.getpid()))
    assert is_over(directory)


def test_a_watchdog_that_still_answers_says_that_the_job_is_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_watchdog(tmp_path) as fake:
        over = a_status(phase=JobPhase.SUCCEEDED, ended_at=ENDED_AT, now=ENDED_AT + 5.0)
        fake.answers |= {"GET status": (200, over), "GET ranks": (200, [a_rank(0)]), "GET nodes": (200, [NODE])}
        for command in ("ranks", "nodes"):
            assert answer([command, "--state-dir", str(tmp_path)]) == 0
            said = capsys.readouterr().err
            assert f"{JOB} ended {CLOCK.partition(' ')[2]}, Succeeded; this is what was last known" in said
        fake.answers["GET status"] = (200, a_status())
        assert answer(["ranks", "--state-dir", str(tmp_path)]) == 0
        assert capsys.readouterr().err == ""


def test_a_finished_job_of_a_cluster_says_so_from_its_record_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_kubernetes(tmp_path) as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
        fake.answers[f"GET {JOBS}/gpt"] = (
            200,
            a_job(phase="Succeeded", finishedAt="2023-11-14T22:13:20Z", step=9),
        )
        assert answer(["status", "gpt"], Program.KUBECTL) == 0
        assert f"ended          {CLOCK}\n" in capsys.readouterr().out
        live = f"{PROXY}/v1/jobs/research/gpt"
        over = a_status(phase=JobPhase.FAILED, ended_at=ENDED_AT, now=ENDED_AT + 5.0)
        fake.answers |= {f"GET {live}/status": (200, over), f"GET {live}/nodes": (200, [NODE])}
        assert answer(["nodes", "gpt"], Program.KUBECTL) == 0
        assert "Failed; this is what was last known" in capsys.readouterr().err
