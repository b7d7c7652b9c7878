"""Taking the stacks of workers that put another thing in the place of their file, or say too much."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.agent.launch.launcher import Launcher
from holdfast.agent.launch.stacks import StackTaker, is_stopped
from holdfast.api.stacks import Collective, FlightTold, FlightWanted, RankStack, StacksWanted, stacks_file_name
from holdfast.watchdog.server.peers import FRAME_BYTES_MAX

PID = 4242
DUMP = 'Current thread 0x1 (most recent call first):\n  File "/home/me/train.py", line 7 in <module>\n'


def taker(folder: Path, dump: Callable[[Path], None]) -> StackTaker:
    file = folder / stacks_file_name(PID)
    return StackTaker(folder, dump=lambda _: dump(file), ask=lambda pid, wanted: False)


def append(file: Path) -> None:
    with file.open("a") as opened:
        opened.write(DUMP)


async def test_a_worker_that_writes_is_read_from_where_its_file_ended(tmp_path: Path) -> None:
    (tmp_path / stacks_file_name(PID)).write_text("of before\n")
    (found,) = await taker(tmp_path, append).take({PID: 3}, 1)
    assert found == RankStack(3, PID, ("train.py:7 in <module>",), (0,))


@pytest.mark.parametrize("late", [False, True], ids=["before it is asked", "while it is asked"])
@pytest.mark.parametrize("kind", ["a link", "a pipe"])
async def test_nothing_is_read_or_waited_for_that_a_worker_put_in_its_place(
    tmp_path: Path, kind: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no py-spy
    secret, file = tmp_path / "secret", tmp_path / stacks_file_name(PID)
    secret.write_text(DUMP)

    def replace(file: Path) -> None:
        file.unlink(missing_ok=True)
        file.symlink_to(secret) if kind == "a link" else os.mkfifo(file)

    if late:
        file.touch()
    else:
        replace(file)
    (found,) = await taker(tmp_path, replace).take({PID: 3}, 1)
    assert found.frames == ()
    assert found.missing


async def test_what_a_rank_says_of_its_collectives_fits_a_frame_or_is_left_out(tmp_path: Path) -> None:
    (tmp_path / stacks_file_name(PID)).touch()

    def answers(collectives: tuple[Collective, ...]) -> StackTaker:
        def ask(pid: int, wanted: FlightWanted) -> bool:
            made.told(pid, FlightTold(wanted.number, collectives))
            return True

        made = StackTaker(tmp_path, dump=lambda _: append(tmp_path / stacks_file_name(PID)), ask=ask)
        return made

    few = (Collective("default_pg", 1, "all_reduce"),)
    many = tuple(Collective("g" * 253, each, "o" * 253, "s" * 253, "p" * 4096) for each in range(64))
    (fits,) = await answers(few).take({PID: 0}, 1)
    (huge,) = await answers(many).take({PID: 0}, 2)
    assert fits.collectives == few
    assert huge.collectives == ()
    assert len(msgspec.msgpack.encode(huge)) < FRAME_BYTES_MAX


async def test_of_a_worker_that_writes_nothing_no_more_is_said_than_is_known(tmp_path: Path) -> None:
    (tmp_path / stacks_file_name(PID)).touch()
    (found,) = await taker(tmp_path, lambda file: None).take({PID: 3}, 1)
    assert found.missing.endswith("the kernel does not run it, or its script has taken SIGURG for itself")


@pytest.mark.parametrize("is_over", [False, True])
async def test_what_was_shown_meanwhile_is_done_afterwards_unless_the_launcher_ends(is_over: bool) -> None:
    done: list[object] = []

    async def take(workers: object, number: int) -> list[RankStack]:
        await asyncio.sleep(0)
        return []

    launcher: Any = Launcher.__new__(Launcher)
    launcher._set, launcher._stacks = SimpleNamespace(slots=()), SimpleNamespace(take=take)
    launcher._over, launcher._behind = asyncio.get_running_loop().create_future(), "the next round"
    launcher._take_shown = done.append
    if is_over:
        launcher._over.set_result(None)
    await launcher._take_stacks(StacksWanted(1, 1))
    assert done == ([] if is_over else ["the next round"])


@pytest.fixture
def stopped() -> Iterator[int]:
    """A process that the kernel has stopped."""
    process = subprocess.Popen(["sleep", "60"])
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    yield process.pid
    process.kill()
    process.wait()


async def test_a_stopped_process_is_said_to_be_and_asked_nothing(tmp_path: Path, stopped: int) -> None:
    assert is_stopped(stopped)
    asked: list[int] = []
    (tmp_path / stacks_file_name(stopped)).touch()
    taking = StackTaker(tmp_path, dump=asked.append, ask=lambda pid, _: bool(asked.append(pid)))
    (told,) = await taking.take({stopped: 3}, 1)
    assert (told.rank, told.missing, asked) == (3, "its process is stopped", [])
