import asyncio
import os
import signal
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.api.errors import Unavailable
from holdfast.api.plan import NodeObserved, NodeState, Plan
from holdfast.cli.embedded.childprocess import ChildProcess, descendants, exit_text
from holdfast.cli.embedded.localcluster import Decision, LocalCluster, PlacementOptions
from holdfast.cli.embedded.localnode import NodeOptions
from holdfast.cli.embedded.planfollower import OperatorOutbox
from holdfast.cli.embedded.session import lay_out
from holdfast.cli.statedirectory import StateDirectory, run_lock


def started(tmp_path: Path, *arguments: str) -> ChildProcess:
    return ChildProcess(arguments, log=tmp_path / "child.log", directory=tmp_path)


async def test_the_end_of_a_child_is_known_at_once_with_its_last_words(tmp_path: Path) -> None:
    child = started(tmp_path, "sh", "-c", "echo one; echo two; echo; exit 3")
    assert await child.ended == 3
    assert not child.alive
    assert child.last_line() == "two"
    child.send(signal.SIGTERM)  # nobody is there: nothing happens


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.embedded.childprocess.POLITE_S", 0.05)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what is ignored at the start stays ignored
    try:
        child = started(tmp_path, "sleep", "30")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert await child.stop() == -signal.SIGKILL


async def test_a_child_is_a_descendant_with_a_session_of_its_own(tmp_path: Path) -> None:
    child = started(tmp_path, "sleep", "30")
    assert child.pid in descendants(os.getpid())
    assert os.getsid(child.pid) == child.pid
    assert await child.stop() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal 9 (SIGKILL)"), (-35, "signal 35")],
)
def test_the_way_a_process_ended_is_told_in_words(code: int, words: str) -> None:
    assert exit_text(code) == words


async def test_a_new_connection_is_told_the_newest_of_every_node_once() -> None:
    outbox = OperatorOutbox()
    ready, gone = NodeObserved("node-1", NodeState.READY), NodeObserved("node-1", NodeState.GONE, "killed")
    other = NodeObserved("node-2", NodeState.READY)
    for observed in (ready, other, gone):
        outbox.put(observed)
    first = outbox.follow()
    assert [await anext(first), await anext(first)] == [other, gone]
    outbox.put(ready)
    assert await anext(first) is ready
    await first.aclose()
    again = outbox.follow()
    assert {await anext(again), await anext(again)} == {other, ready}
    await again.aclose()


def test_the_token_of_a_run_is_the_first_word_of_its_file(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    directory.token_file.write_text("the-operators view,operate\nthe-viewers view\n")
    assert directory.token() == "the-operators"
    for nothing in ("", "\n"):
        directory.token_file.write_text(nothing)
        with pytest.raises(Unavailable, match="there is no token"):
            directory.token()


def test_a_state_directory_is_held_by_one_run_at_a_time(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "state")
    with run_lock(directory):
        assert stat.S_IMODE(directory.lock_file.stat().st_mode) == 0o600
        with (
            pytest.raises(Unavailable, match=f"in use by a run that is alive \\(pid {os.getpid()} on "),
            run_lock(directory),
        ):
            raise AssertionError
    with run_lock(directory):
        pass


def test_the_certificate_of_a_run_that_was_lost_is_not_taken_for_the_next_ones(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    directory.certificate_file.touch()
    directory.key_file.touch()
    assert directory.trust().encrypts
    lay_out(directory, "default/work", "job.yaml", starts_over=False)
    assert not directory.trust().encrypts
    assert not directory.key_file.exists()


async def test_no_node_is_started_any_more_once_the_job_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = asyncio.Event()

    def decided(*_: object) -> Decision:
        looked.set()
        return Decision()

    monkeypatch.setattr("holdfast.cli.embedded.localcluster.decide", decided)
    plan = Plan("default/toy", 1, members=2, spares=0)
    options = SimpleNamespace(prepared=SimpleNamespace(job=SimpleNamespace(id=plan.job)))
    cluster = LocalCluster(cast(NodeOptions, options), PlacementOptions(), lambda line: None)
    cluster.hear(plan)
    running = asyncio.create_task(cluster.run())
    await looked.wait()
    looked.clear()
    await cluster.drain(0.0)
    cluster.hear(plan)
    for _ in range(10):
        await asyncio.sleep(0)
    running.cancel()
    assert not looked.is_set()
