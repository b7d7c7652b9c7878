"""What is wrong with the node itself: memory, disks, the clock."""

import random
from dataclasses import replace

import pytest

from holdfast.agent.conditions.nodes import UNSYNCHRONISED_FOR_S, NodeJudge
from holdfast.agent.reading import ClockDetail, DiskDetail, MemoryDetail, NodeDetail
from holdfast.agent.sensors.nodebasics import clock_detail
from holdfast.api.condition import ConditionKind, ConditionState

GIB = 2**30
DISK = DiskDetail(
    path="/checkpoints",
    total_bytes=1000 * GIB,
    free_bytes=500 * GIB,
    total_inodes=1000,
    free_inodes=500,
    read_only=False,
)
CLOCK = ClockDetail(offset_s=0.0, error_s_max=0.001, unsynchronised=False)
UNSET_CLOCK = ClockDetail(offset_s=0.0, error_s_max=16.0, unsynchronised=True)


def judge() -> NodeJudge:
    return NodeJudge()


def memory(available_gib: float) -> NodeDetail:
    return NodeDetail(memory=MemoryDetail(total_bytes=1000 * GIB, available_bytes=int(available_gib * GIB)))


def standing(node: NodeJudge, now: float) -> dict[ConditionKind, ConditionState]:
    return {each.kind: each.state for each in node.book.report(now)}


def test_a_disk_that_is_nearly_full_is_raised_and_cleared_with_a_tenth_more_free() -> None:
    node = judge()
    node.observe(NodeDetail(disks=(DISK,)), 0.0)
    assert node.book.report(0.0) == ()
    node.observe(NodeDetail(disks=(replace(DISK, free_bytes=49 * GIB),)), 1.0)
    (raised,) = node.book.report(1.0)
    assert (raised.kind, raised.device) == (ConditionKind.DISK_FULL, "/checkpoints")
    assert "4.9% of its space" in raised.says
    node.observe(NodeDetail(disks=(replace(DISK, free_bytes=54 * GIB),)), 2.0)
    assert standing(node, 2.0) == {ConditionKind.DISK_FULL: ConditionState.RAISED}
    node.observe(NodeDetail(disks=(replace(DISK, free_bytes=56 * GIB),)), 3.0)
    assert standing(node, 3.0) == {ConditionKind.DISK_FULL: ConditionState.CLEARED}


def test_a_disk_without_inodes_left_is_full_and_one_that_counts_none_is_not() -> None:
    node = judge()
    node.observe(NodeDetail(disks=(replace(DISK, free_inodes=3),)), 0.0)
    assert "of its inodes" in node.book.report(0.0)[0].says
    node = judge()
    node.observe(
        NodeDetail(
            disks=(
                replace(DISK, total_inodes=None, free_inodes=None),
                replace(DISK, total_bytes=0),
            )
        ),
        0.0,
    )
    assert node.book.report(0.0) == ()


def test_a_file_system_that_goes_read_only_is_raised_until_it_takes_writes() -> None:
    node = judge()
    node.observe(NodeDetail(disks=(DISK,)), 0.0)
    node.observe(NodeDetail(disks=(replace(DISK, read_only=True),)), 1.0)
    assert standing(node, 1.0) == {ConditionKind.DISK_READ_ONLY: ConditionState.RAISED}
    node.observe(NodeDetail(disks=(DISK,)), 2.0)
    assert standing(node, 2.0) == {ConditionKind.DISK_READ_ONLY: ConditionState.CLEARED}


def test_a_file_system_that_was_read_only_from_the_start_is_meant_to_be() -> None:
    node = judge()
    node.observe(NodeDetail(disks=(replace(DISK, read_only=True),)), 1.0)
    assert node.book.report(1.0) == ()


def test_memory_has_to_be_short_for_some_seconds() -> None:
    node = judge()
    node.observe(memory(19), 0.0)
    node.observe(memory(25), 2.0)
    node.observe(memory(19), 4.0)
    node.observe(memory(19), 8.0)
    assert node.book.report(8.0) == ()
    node.observe(memory(19), 9.0)
    assert standing(node, 9.0) == {ConditionKind.MEMORY_LOW: ConditionState.RAISED}
    node.observe(memory(21), 10.0)
    assert standing(node, 10.0) == {ConditionKind.MEMORY_LOW: ConditionState.RAISED}
    node.observe(memory(23), 11.0)
    assert standing(node, 11.0) == {ConditionKind.MEMORY_LOW: ConditionState.CLEARED}


def test_a_clock_that_nobody_sets_is_raised_after_ten_minutes() -> None:
    node = judge()
    node.observe(NodeDetail(clock=UNSET_CLOCK), 0.0)
    node.observe(NodeDetail(clock=UNSET_CLOCK), UNSYNCHRONISED_FOR_S - 1)
    assert node.book.report(0.0) == ()
    node.observe(NodeDetail(clock=UNSET_CLOCK), UNSYNCHRONISED_FOR_S)
    assert standing(node, 600.0) == {ConditionKind.CLOCK_UNSYNCHRONISED: ConditionState.RAISED}
    node.observe(NodeDetail(clock=CLOCK), 700.0)
    assert standing(node, 700.0) == {ConditionKind.CLOCK_UNSYNCHRONISED: ConditionState.CLEARED}


def test_what_cannot_be_read_changes_nothing() -> None:
    node = judge()
    node.observe(NodeDetail(disks=(replace(DISK, free_bytes=0),)), 0.0)
    node.observe(NodeDetail(), 1.0)
    node.observe(NodeDetail(), 1.0)
    assert standing(node, 1.0) == {ConditionKind.DISK_FULL: ConditionState.RAISED}


def test_a_thousand_days_of_ordinary_use_raise_nothing() -> None:
    chance = random.Random(7)
    node = judge()
    for hour in range(24_000):
        now = hour * 3600.0
        node.observe(replace(memory(chance.uniform(25, 900)), clock=CLOCK), now)
        node.observe(NodeDetail(disks=(replace(DISK, free_bytes=int(chance.uniform(60, 900) * GIB)),)), now)
        assert node.book.report(now) == ()


@pytest.mark.parametrize(
    ("state", "status", "offset", "unsynchronised", "offset_s"),
    [
        pytest.param(0, 0x2001, 1_500_000, False, 0.0015, id="in nanoseconds"),
        pytest.param(0, 0x0001, 1_500, False, 0.0015, id="in microseconds"),
        pytest.param(0, 0x0040, 0, True, 0.0, id="the status says it"),
        pytest.param(5, 0x0000, 0, True, 0.0, id="the answer says it"),
    ],
)
def test_the_kernels_answer_is_in_seconds(
    state: int, status: int, offset: int, unsynchronised: bool, offset_s: float
) -> None:
    detail = clock_detail(state, status, offset=offset, maxerror_us=2000)
    assert (detail.unsynchronised, detail.error_s_max) == (unsynchronised, pytest.approx(0.002))
    assert detail.offset_s == pytest.approx(offset_s)
