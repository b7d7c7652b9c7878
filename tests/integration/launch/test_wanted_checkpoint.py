"""One more checkpoint, from the watchdog's word to its commit: two launchers, two real gloo workers each."""

import os
import random
import signal
from pathlib import Path

import pytest
from fake_watchdog import FakeWatchdog
from launch_harness import SCRIPTS, Node, Nodes, line_in

from holdfast.api.membership import (
    CheckpointCommitted,
    Join,
    Restored,
    RoundEntered,
    SaveWanted,
    Verified,
    Warmed,
    WorkersFinished,
)
from holdfast.api.round import Entry, Restore, Tier

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("warm_runs")]  # it is about what comes after a start
SAVES = str(SCRIPTS / "saves.py")
MEMBERS = ("a", "b")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return (tmp_path / "checkpoints").as_uri()


async def start(watchdog: FakeWatchdog, nodes: Nodes, *arguments: str) -> list[Node]:
    started = []
    for member in MEMBERS:
        started.append(await nodes.start(member, watchdog.endpoint, SAVES, *arguments, local_size=2))
    for member in MEMBERS:
        join = await watchdog.wait_for(Join, member=member)
        if not join.warm:
            await watchdog.wait_for(Warmed, member=member, timeout_s=60)
    return started


async def answer(watchdog: FakeWatchdog, number: int) -> CheckpointCommitted:
    return await watchdog.wait_for(CheckpointCommitted, where=lambda said: said.wanted == number)


def losses(node: Node, rank: int, round_: int) -> dict[int, str]:
    lines = [line.split() for line in node.log(rank, round_).read_text().splitlines() if line.startswith("step ")]
    return {int(words[1]): words[3] for words in lines}


def saved(uri: str) -> list[str]:
    return sorted(path.name for path in Path(uri.removeprefix("file://")).glob("step-*"))


async def test_it_is_committed_with_its_number_and_restored_exactly(
    watchdog: FakeWatchdog, nodes: Nodes, uri: str
) -> None:
    started = await start(watchdog, nodes, "--uri", uri)
    await watchdog.show(watchdog.round(1, *MEMBERS))
    await line_in(started[0].log(0, 1), f"step {random.Random(7).randrange(3, 40)} ")
    await watchdog.show(SaveWanted(round=1, number=1))
    committed = await answer(watchdog, 1)
    assert (committed.round, committed.uri) == (1, f"{uri}/{saved(uri)[0]}")
    until = committed.step + 5
    await line_in(started[0].log(0, 1), f"step {until} ")
    before = losses(started[0], 0, 1)

    restore = Restore(tier=Tier.CHECKPOINT, step=committed.step, uri=uri)
    await watchdog.show(watchdog.round(2, *MEMBERS, restore=restore))
    restored = await watchdog.wait_for(Restored, where=lambda said: said.round == 2)
    assert restored.step == committed.step
    await line_in(started[0].log(0, 2), f"step {until} ")
    after = losses(started[0], 0, 2)
    assert min(after) == committed.step + 1
    assert {step: before[step] for step in range(min(after), until + 1)} == {
        step: after[step] for step in range(min(after), until + 1)
    }


async def test_it_waits_for_a_regular_save_in_flight(watchdog: FakeWatchdog, nodes: Nodes, uri: str) -> None:
    arguments = ("--uri", uri, "--every", "20", "--pace", "0.05", "--slow-disk", "1.5")
    started = await start(watchdog, nodes, *arguments)
    await watchdog.show(watchdog.round(1, *MEMBERS))
    await line_in(started[0].log(0, 1), "step 21 ")
    await watchdog.show(SaveWanted(round=1, number=5))
    committed = await answer(watchdog, 5)
    regular = [said for said in watchdog.all_of(CheckpointCommitted) if said.wanted is None]
    assert [said.step for said in regular] == [20]
    assert 21 < committed.step < 80


async def test_shown_again_it_is_the_same_and_a_new_number_is_another(
    watchdog: FakeWatchdog, nodes: Nodes, uri: str
) -> None:
    started = await start(watchdog, nodes, "--uri", uri)
    await watchdog.show(watchdog.round(1, *MEMBERS))
    await line_in(started[0].log(0, 1), "step 3 ")
    for number in (1, 2):
        await watchdog.show(SaveWanted(round=1, number=number))
        committed = await answer(watchdog, number)
        await watchdog.show(SaveWanted(round=1, number=number))
        await line_in(started[0].log(0, 1), f"step {committed.step + 150} ")
    assert [said.wanted for said in watchdog.all_of(CheckpointCommitted)] == [1, 2]
    assert len(saved(uri)) == 2


async def test_a_rank_that_hears_late_takes_part(watchdog: FakeWatchdog, nodes: Nodes, uri: str) -> None:
    started = await start(watchdog, nodes, "--uri", uri)
    await watchdog.show(watchdog.round(1, *MEMBERS))
    await line_in(started[0].log(0, 1), "step 3 ")
    # The launcher of two of the ranks is stopped: they train on and hear nothing of it.
    os.kill(started[1].process.pid, signal.SIGSTOP)
    await watchdog.show(SaveWanted(round=1, number=1))
    reached = max(losses(started[0], 0, 1)) + 250
    await line_in(started[0].log(0, 1), f"step {reached} ")
    assert watchdog.all_of(CheckpointCommitted) == []
    os.kill(started[1].process.pid, signal.SIGCONT)
    assert (await answer(watchdog, 1)).step > reached


async def test_what_is_verified_outlives_what_is_kept_until_a_newer_one_is(
    watchdog: FakeWatchdog, nodes: Nodes, uri: str
) -> None:
    async def save(round_: int, number: int) -> CheckpointCommitted:
        await watchdog.show(SaveWanted(round=round_, number=number))
        return await answer(watchdog, number)

    await start(watchdog, nodes, "--uri", uri, "--keep", "1")
    await watchdog.show(watchdog.round(1, *MEMBERS))
    first = await save(1, 1)
    restore = Restore(tier=Tier.CHECKPOINT, step=first.step, uri=uri, verified=first.step)
    await watchdog.show(watchdog.round(2, *MEMBERS, restore=restore))
    for number in (2, 3, 4):
        await save(2, number)  # What was there before the one before is deleted by now.
    assert Path(first.uri.removeprefix("file://")).name in saved(uri)
    newer = await save(2, 5)
    await watchdog.show(Verified(round=2, step=newer.step))
    for number in (6, 7, 8):
        await save(2, number)
    assert Path(first.uri.removeprefix("file://")).name not in saved(uri)
    assert Path(newer.uri.removeprefix("file://")).name in saved(uri)


async def test_shown_before_the_workers_are_there_it_is_answered_by_them(
    watchdog: FakeWatchdog, nodes: Nodes, uri: str
) -> None:
    await start(watchdog, nodes, "--uri", uri)
    await watchdog.show(watchdog.round(1, *MEMBERS))
    await watchdog.show(SaveWanted(round=1, number=1))
    assert (await answer(watchdog, 1)).round == 1


async def test_a_loop_that_ends_before_the_step_ends_as_always(
    watchdog: FakeWatchdog, nodes: Nodes, uri: str
) -> None:
    started = await start(watchdog, nodes, "--uri", uri, "--until", "30")
    await watchdog.show(watchdog.round(1, *MEMBERS))
    # The step to save is a second ahead, and two steps at least: that is the last one, or behind the end.
    await line_in(started[0].log(0, 1), "step 28 ")
    await watchdog.show(SaveWanted(round=1, number=1))
    await watchdog.wait_for(WorkersFinished, count=2)
    assert saved(uri) == ["step-00000030"]


async def test_a_script_without_the_trainer_never_hears_of_it(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, str(SCRIPTS / "ddp.py"), local_size=2)
    join = await watchdog.wait_for(Join)
    if not join.warm:
        await watchdog.wait_for(Warmed, timeout_s=60)
    await watchdog.show(watchdog.round(1, "a", entry=Entry.REENTER))
    await line_in(node.log(0, 1), "step 2 ")
    await watchdog.show(SaveWanted(round=1, number=1))
    await watchdog.wait_for(RoundEntered)
    await line_in(node.log(0, 1), "step 80 ")
    assert watchdog.all_of(CheckpointCommitted) == []
