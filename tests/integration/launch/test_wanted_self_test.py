"""A self-test, from the watchdog's word to the answer: real launchers, warm and cold, on the CPU."""

import asyncio
import json
import signal

import psutil
import pytest
from fake_watchdog import FakeWatchdog
from launch_harness import SCRIPTS, Node, Nodes, line_in, no_process_left
from patience import patient

from holdfast.api.bitflip import CORRUPTIBLE_VARIABLE
from holdfast.api.drill import DRILL_FILE
from holdfast.api.membership import Beat, Join, RoundEntered, WorkersFinished
from holdfast.api.selftest import Tested, TestLevel, TestWanted, Verdict

DDP = str(SCRIPTS / "ddp.py")
HANG = {"inject": ["hang:check=product-fp32"]}


def wanted(number: int) -> TestWanted:
    return TestWanted(number, TestLevel.LIGHT, "preflight")


async def start(
    watchdog: FakeWatchdog, nodes: Nodes, *entrypoint: str, drill: dict[str, list[str]] | None = None
) -> Node:
    """A launcher that has joined, and takes this drill, which lies in its run directory."""
    folder = nodes.folder / "a"
    folder.mkdir()
    if drill is not None:
        (folder / DRILL_FILE).write_text(json.dumps(drill))
    armed = () if drill is None else ("env", f"{CORRUPTIBLE_VARIABLE}=1")
    node = await nodes.start("a", watchdog.endpoint, *(entrypoint or (DDP,)), prefix=armed)
    await watchdog.wait_for(Join)
    return node


async def hanging(node: Node, processes: int = 2) -> list[psutil.Process]:
    """The processes of a test that hangs: the one that supervises, and its station."""
    async with asyncio.timeout(patient(60)):
        while True:
            found = [each for each in node.descendants() if is_test(each)]
            if len(found) == processes:
                return found
            await asyncio.sleep(0.02)


def is_test(process: psutil.Process) -> bool:
    try:
        return process.name() == "selftest"
    except psutil.NoSuchProcess:
        return False


async def answer(watchdog: FakeWatchdog, number: int) -> Tested:
    return await watchdog.wait_for(Tested, where=lambda said: said.number == number, timeout_s=60)


async def test_a_member_without_workers_tests_itself_and_says_the_same_again(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    await start(watchdog, nodes)
    await watchdog.show(wanted(1))
    tested = await answer(watchdog, 1)
    assert (tested.verdict, tested.level) == (Verdict.PASSED, TestLevel.LIGHT)
    assert {"product-bf16", "transformer-fp32", "memory", "all-reduce"} <= {each.check for each in tested.checks}
    assert "one time in 50 is seen with 95.1%" in tested.says
    await watchdog.show(wanted(1))
    again = await watchdog.wait_for(Tested, count=2)
    assert again == tested
    await watchdog.hang_up()
    assert await watchdog.wait_for(Tested, count=3) == tested


async def test_a_device_that_computes_wrongly_one_time_in_fifty_is_named(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    drill = {"devices": ["GPU-1", "GPU-2"], "inject": ["flip:probability=0.02:seed=7:device=GPU-2"]}
    await start(watchdog, nodes, drill=drill)
    await watchdog.show(wanted(1))
    tested = await answer(watchdog, 1)
    assert tested.verdict is Verdict.FAILED
    failed = [each for each in tested.checks if each.verdict is Verdict.FAILED]
    assert {each.device for each in failed} == {"GPU-2"}
    assert "of 149 runs gave another result" in failed[0].says


async def test_a_round_that_needs_the_member_ends_its_test(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    # The worker looks whether anything of the test is left, which could hold memory of its GPU.
    look = 'for pid in $(cat $OUT/test); do kill -0 $pid && echo "beside $pid"; done; echo alone; exec sleep 600'
    node = await start(watchdog, nodes, "--no-python", "sh", "-c", look, drill=HANG)
    await watchdog.show(wanted(1))
    before = await hanging(node)
    (node.folder / "test").write_text(" ".join(str(each.pid) for each in before))
    beats = len(watchdog.all_of(Beat))
    await watchdog.wait_for(Beat, count=beats + 5)  # a test that hangs holds up nothing
    await watchdog.show(watchdog.round(7, "a"))
    tested = await answer(watchdog, 1)
    assert (tested.verdict, tested.says) == (Verdict.UNKNOWN, "interrupted by round 7")
    await watchdog.wait_for(RoundEntered)
    await line_in(node.log(0, 7), "alone", timeout_s=30)
    assert "beside" not in node.log(0, 7).read_text()


async def test_a_test_waits_until_the_workers_have_left(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await start(watchdog, nodes)
    await watchdog.show(watchdog.round(1, "a"))
    await line_in(node.log(0, 1), "step 2 ", timeout_s=60)
    await watchdog.show(wanted(1))
    await watchdog.show(wanted(2))
    await line_in(node.log(0, 1), "step 40 ", timeout_s=60)
    assert watchdog.all_of(Tested) == []
    await watchdog.show(watchdog.idle(2))
    assert (await answer(watchdog, 2)).verdict is Verdict.PASSED
    assert [said.number for said in watchdog.all_of(Tested)] == [2]
    assert watchdog.all_of(WorkersFinished) == []


async def test_a_launcher_that_is_told_to_end_leaves_no_test_behind(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await start(watchdog, nodes, drill=HANG)
    await watchdog.show(wanted(1))
    processes = await hanging(node)
    node.process.send_signal(signal.SIGTERM)
    await node.wait(30)
    await no_process_left(processes, timeout_s=30)


@pytest.mark.parametrize("drill", [{"inject": ["flop"]}, {"devises": ["GPU-1"]}])
async def test_a_drill_that_is_none_leaves_the_test_unknown_and_says_why(
    watchdog: FakeWatchdog, nodes: Nodes, drill: dict[str, list[str]]
) -> None:
    await start(watchdog, nodes, "--no-python", "true", drill=drill)
    await watchdog.show(wanted(1))
    tested = await answer(watchdog, 1)
    assert tested.verdict is Verdict.UNKNOWN
    assert "is not accepted" in tested.says
