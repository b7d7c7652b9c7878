"""The end of what workers wrote: how much of it a launcher sends, and when."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.launch import logs
from holdfast.agent.launch.logs import WAITING_MAX, OutputTails, WorkerRun, output_of
from holdfast.agent.launch.outbox import Outbox
from holdfast.api.workeroutput import (
    ENTRY_BYTES,
    JOB_BYTES,
    TAIL_BYTES_MAX,
    TAIL_BYTES_MIN,
    WorkerOutput,
    spread_s,
    tail_bytes,
)


def a_run(folder: Path, written: bytes, *, pid: int = 7, before: bytes = b"") -> WorkerRun:
    """A process that ended, behind another one in the same file."""
    (folder / f"{pid}.log").write_bytes(before + written)
    return WorkerRun(3, "n1", "m1", 0, pid, 2, f"{pid}.log", len(before), 1.0, 1.0, 5.0, "signal 9")


@pytest.mark.parametrize("world_size", [1, 8, 2048, 7900, 100_000, 10_000_000])
def test_one_process_of_each_rank_fits_into_what_is_kept_of_a_job(world_size: int) -> None:
    size = tail_bytes(world_size)
    assert TAIL_BYTES_MIN <= size <= TAIL_BYTES_MAX
    assert size == TAIL_BYTES_MAX or world_size > 7900
    if size > TAIL_BYTES_MIN:
        assert world_size * (size + ENTRY_BYTES) <= JOB_BYTES
        assert spread_s(world_size) <= 32.0


def test_the_end_begins_with_a_line_and_says_what_is_before_it(tmp_path: Path) -> None:
    run = a_run(tmp_path, b"one\ntwo\nthree\n", before=b"of another\n")
    whole, cut = output_of(run, tmp_path, 100), output_of(run, tmp_path, 8)
    assert whole is not None
    assert cut is not None
    assert (whole.tail, whole.omitted_bytes) == (b"one\ntwo\nthree\n", 0)
    assert (cut.tail, cut.omitted_bytes) == (b"three\n", 8)
    assert (cut.rank, cut.pid, cut.round, cut.ended_with) == (3, 7, 2, "signal 9")
    endless = output_of(a_run(tmp_path, b"x" * 100), tmp_path, 8)
    assert endless is not None
    assert (endless.tail, endless.omitted_bytes) == (b"x" * 8, 92)


def test_of_a_process_that_wrote_nothing_nothing_is_sent(tmp_path: Path) -> None:
    assert output_of(a_run(tmp_path, b"", before=b"of another\n"), tmp_path, 8) is None
    run = a_run(tmp_path, b"x")
    (tmp_path / run.file).unlink()
    assert output_of(run, tmp_path, 8) is None


async def test_what_waits_is_sent_when_the_launcher_leaves_and_of_those_that_run_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "spread_s", lambda world_size: 3600.0)
    sent: list[WorkerOutput] = []
    tails = OutputTails(tmp_path, sent.append)
    for pid in range(1, WAITING_MAX + 3):
        tails.ended(a_run(tmp_path, b"ended\n", pid=pid), 8)
    assert not sent
    living = msgspec.structs.replace(a_run(tmp_path, b"runs\n", pid=500), ended_at=None, ended_with="")
    tails.leave([(living, 8)], 9.0)
    assert [each.pid for each in sent] == [*range(3, WAITING_MAX + 3), 500], "the oldest two were too many"
    assert (sent[-1].tail, sent[-1].ended_at, sent[-1].ended_with) == (b"runs\n", 9.0, "")
    tails.leave([], 9.0)
    assert len(sent) == WAITING_MAX + 1, "each is sent once"


async def test_what_a_process_wrote_is_sent_soon_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "spread_s", lambda world_size: 0.0)
    sent: asyncio.Queue[WorkerOutput] = asyncio.Queue()
    OutputTails(tmp_path, sent.put_nowait).ended(a_run(tmp_path, b"ended\n"), 8)
    assert (await sent.get()).tail == b"ended\n"


def test_while_the_watchdog_is_away_the_newest_are_held_for_it() -> None:
    box = Outbox()
    for pid in range(100):
        box.hold(WorkerOutput(0, pid, 1, 1.0, 2.0, "signal 9", 0, b"x"))
    assert [each.pid for each in box.held()] == list(range(36, 100))
    assert box.held() == []
