"""What an agent had raised and what becomes of it when the agent or its node starts anew, up to the detector.

Virtual time. An agent that keeps its memory holds again what it had raised; one that lost it says what is clear.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from ib_tree import IbTree

from holdfast.agent.conditions.book import all_clear
from holdfast.agent.conditions.gpus import GPU_KINDS
from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.conditions.nodes import NODE_KINDS, NodeJudge
from holdfast.agent.conditions.ports import PORT_KINDS, PortJudge
from holdfast.agent.gpusnapshot import GpuSnapshot
from holdfast.agent.nvml.gpu import Session, Sweep
from holdfast.agent.outbox import Outbox
from holdfast.agent.reading import (
    ClockDetail,
    DiskDetail,
    GpuDetail,
    NodeDetail,
    NvlinkDetail,
    Reading,
)
from holdfast.agent.sensors.infiniband import ports_in
from holdfast.api.condition import AllClear, ConditionKind, ConditionState
from holdfast.api.event import ConditionOver
from holdfast.api.finding import Finding
from holdfast.api.policy import Policy
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import ProcessState, RankSample
from holdfast.watchdog.detectors.condition import ConditionDetector
from holdfast.watchdog.detectors.detector import Reported

HOUR_S = 3600.0
LONG_S = 660.0  # longer than any rule that is not of an hour
RANK = RankSample(0, 0, ProcessState.RUNNING, Phase.FORWARD, 0.1, 0.1)
LINKS = tuple(NvlinkDetail(link=link, active=True, replays=0, recoveries=0, crc_errors=0) for link in range(2))
GPU = GpuDetail(
    uuid="GPU-a",
    index=0,
    temperature_c=60.0,
    utilization_ratio=0.9,
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
    row_remap_failed=False,
    nvlinks=LINKS,
    recovery_action=0,
)
FULL_DISK = DiskDetail(
    path="/checkpoints", total_bytes=1000, free_bytes=10, total_inodes=None, free_inodes=None,
    read_only=False,
)  # fmt: skip


class Looks:
    """A session with the driver that shows these GPUs."""

    def __init__(self, *gpus: GpuDetail) -> None:
        self.gpus = self._details = gpus
        self.unidentified: dict[int, Exception] = {}

    def sweep(self, now: float) -> Sweep:
        return Sweep(self._details)


class GpuAgent:
    """The part of an agent that asks the driver, every second. `starts` is a new run of it."""

    def __init__(self, memory: Callable[[str], ConditionMemory]) -> None:
        self._memory, self.judges = memory, {"nvml": GPU_KINDS}
        self.gpus: tuple[GpuDetail, ...] = (GPU,)
        self.now = 1000.0
        self.starts("boot-1")

    def starts(self, boot: str) -> None:
        self._snapshot = GpuSnapshot(
            "nvml", clock=lambda: self.now, hang=lambda now, longer: "", memory=self._memory(boot)
        )

    def look(self) -> Reading:
        self._snapshot.sweep(cast(Session, Looks(*self.gpus)), self.now)
        return self._snapshot.read(self.now)

    def shows(self, **values: Any) -> None:
        self.gpus = (replace(GPU, **values),)


class PortAgent:
    """The part that looks at ports, every five seconds."""

    def __init__(self, memory: Callable[[str], ConditionMemory], tree: IbTree) -> None:
        self._memory, self._tree, self.judges = memory, tree, {"infiniband": PORT_KINDS}
        self.now = 1000.0
        self.starts("boot-1")

    def starts(self, boot: str) -> None:
        self._judge, self._kept = PortJudge(), self._memory(boot)
        self._judge.take_up(self._kept.recall(self.now))

    def look(self) -> Reading:
        seen = ports_in(str(self._tree.root))
        self._judge.observe(seen.ports, self.now)
        self._kept.keep(self._judge.held(), self.now)
        return Reading(conditions=self._judge.book.report(self.now), all_clear=self._judge.book.all_clear())


class Story:
    """One agent's part, its reports, and the detector that hears them."""

    def __init__(self, agent: GpuAgent | PortAgent, every_s: float = 1.0) -> None:
        self.agent = agent
        self.found: list[str] = []
        self.over: list[str] = []
        self.boots = 0
        self._every_s = every_s
        self._detector = ConditionDetector(Policy(job="a/b", nodes_min=1, nodes_max=2, processes_per_node=2))
        self._reports()

    def restarts(self, boot: str = "boot-1") -> None:
        self.agent.starts(boot)
        self._reports()

    def passes(self, seconds: float) -> None:
        until = self.agent.now + seconds
        while self.agent.now < until:
            self.agent.now += self._every_s
            reading = self.agent.look()
            clear = all_clear(self.agent.judges, dict.fromkeys(self.agent.judges, reading))
            self._outbox.observe(replace(reading, all_clear=clear, ranks=(RANK,)), self.agent.now)
            self._hears()

    def raised(self) -> set[ConditionKind]:
        return {each.kind for each in self.agent.look().conditions if each.state is ConditionState.RAISED}

    def _reports(self) -> None:
        self.boots += 1
        self._outbox = Outbox(node="n0", boot=f"run {self.boots}", interval_s=self._every_s)

    def _hears(self) -> None:
        report = self._outbox.take(self.agent.now)
        for proof in self._detector.observe(Reported(report), self.agent.now) if report is not None else ():
            if isinstance(proof, Finding):
                self.found.append(proof.cause)
            elif isinstance(proof, ConditionOver):
                self.over.append(proof.cause)


Remembering = Callable[[str], ConditionMemory]


@pytest.fixture(params=["remembering", "forgetful"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Remembering:
    if request.param == "forgetful":
        return lambda boot: ConditionMemory()
    return lambda boot: ConditionMemory(str(tmp_path / "held.json"), boot=boot)


@pytest.fixture
def lasting(tmp_path: Path) -> Remembering:
    return lambda boot: ConditionMemory(str(tmp_path / "held.json"), boot=boot)


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"], ids=["agent restarts", "node reboots"])
def test_an_nvlink_that_is_up_for_a_minute_after_a_restart_is_well(memory: Remembering, boot: str) -> None:
    agent = GpuAgent(memory)
    story = Story(agent)
    story.passes(10)
    agent.shows(nvlinks=(LINKS[0], replace(LINKS[1], active=False)))
    story.passes(20)
    assert story.found == ["NvlinkDown"]
    story.restarts(boot)
    story.passes(LONG_S)
    assert story.over == []  # still down, whether or not this run saw it go down
    agent.shows()
    story.passes(59)
    assert story.over == []
    story.passes(40)
    assert (story.found, story.over) == (["NvlinkDown"], ["NvlinkDown"])


@pytest.mark.parametrize("boot", ["boot-1", "boot-2"], ids=["agent restarts", "node reboots"])
def test_a_port_that_is_up_for_a_minute_after_a_restart_is_well(
    memory: Remembering, boot: str, tmp_path: Path
) -> None:
    tree = IbTree(tmp_path, adapters=1)
    agent = PortAgent(memory, tree)
    story = Story(agent, every_s=5.0)
    story.passes(60)
    tree.down("mlx5_0")
    story.passes(60)
    assert story.found == ["LinkDown"]
    story.restarts(boot)
    story.passes(LONG_S)
    assert story.over == []
    tree.up("mlx5_0")
    story.passes(55)
    assert story.over == []
    story.passes(60)
    assert (story.found, story.over) == (["LinkDown"], ["LinkDown"])


def test_a_link_that_was_slow_under_load_is_not_well_because_an_idle_agent_does_not_see_it(
    memory: Remembering,
) -> None:
    agent = GpuAgent(memory)
    story = Story(agent)
    agent.shows(pcie_generation=3)
    story.passes(30)
    assert story.found == ["PcieDegraded"]
    agent.shows(pcie_generation=1, utilization_ratio=0.0)
    story.restarts()
    story.passes(LONG_S)
    assert story.over == []
    agent.shows(utilization_ratio=0.9)
    story.passes(59)
    assert story.over == []
    story.passes(40)
    assert (story.found, story.over) == (["PcieDegraded"], ["PcieDegraded"])


def test_what_is_raised_again_after_a_restart_is_the_same(memory: Remembering) -> None:
    agent = GpuAgent(memory)
    story = Story(agent)
    agent.shows(pcie_width=8)
    story.passes(30)
    story.restarts()
    story.passes(LONG_S)
    assert (story.found, story.over) == (["PcieDegraded"], [])


def test_a_gpu_that_answers_a_driver_without_recovery_actions_for_a_minute_is_well(memory: Remembering) -> None:
    agent = GpuAgent(memory)
    agent.shows(recovery_action=1)
    story = Story(agent)
    story.passes(5)
    assert story.found == ["RecoveryNeeded"]
    agent.shows(recovery_action=None)
    story.restarts("boot-2")
    story.passes(59)
    assert story.over == []
    story.passes(40)
    assert story.over == ["RecoveryNeeded"]


def test_a_gpu_that_was_replaced_is_over_with_the_boot_that_came_without_it(memory: Remembering) -> None:
    agent = GpuAgent(memory)
    agent.shows(row_remap_failed=True)
    story = Story(agent)
    story.passes(5)
    assert story.found == ["RowRemapFailed"]
    agent.gpus = (replace(GPU, uuid="GPU-new"),)
    story.restarts("boot-2")
    story.passes(5)
    assert story.over == ["RowRemapFailed"]


def test_a_gpu_that_is_missing_in_the_same_boot_stays_as_it_was(lasting: Remembering) -> None:
    agent = GpuAgent(lasting)
    agent.shows(row_remap_failed=True)
    story = Story(agent)
    story.passes(5)
    agent.gpus = (replace(GPU, uuid="GPU-b"),)
    story.restarts("boot-1")
    story.passes(120)
    assert story.over == []
    assert story.raised() == {ConditionKind.ROW_REMAP_FAILED}


def test_an_nvlink_that_nobody_saw_up_keeps_its_place_open_but_no_other(memory: Remembering) -> None:
    agent = GpuAgent(memory)
    unconnected = replace(LINKS[0], active=False)
    agent.shows(nvlinks=(unconnected, LINKS[1]))
    story = Story(agent)
    story.passes(10)
    agent.shows(nvlinks=(unconnected, replace(LINKS[1], active=False)))
    story.passes(10)
    story.restarts("boot-2")
    agent.shows(nvlinks=(unconnected, LINKS[1]))
    story.passes(120)
    assert (story.found, story.over) == (["NvlinkDown"], ["NvlinkDown"])


def test_a_gpu_that_does_not_answer_keeps_all_from_being_clear(memory: Remembering) -> None:
    agent = GpuAgent(memory)
    story = Story(agent)
    story.passes(120)
    assert AllClear(ConditionKind.PCIE_DEGRADED) in agent.look().all_clear
    agent.gpus = ()
    assert agent.look().all_clear == ()


def test_a_port_that_runs_at_a_lower_rate_since_a_restart_is_not_at_its_best(
    lasting: Remembering, tmp_path: Path
) -> None:
    tree = IbTree(tmp_path, adapters=2)  # too few to compare them with each other
    agent = PortAgent(lasting, tree)
    story = Story(agent, every_s=5.0)
    story.passes(60)
    tree.port("mlx5_0", "rate", "100 Gb/sec (4X EDR)")
    story.passes(120)
    for boot in ("boot-1", "boot-2"):
        story.restarts(boot)
        story.passes(120)
        assert story.raised() == {ConditionKind.LINK_DEGRADED}
    tree.port("mlx5_0", "rate", "400 Gb/sec (4X NDR)")
    story.passes(70)
    assert story.raised() == set()


@pytest.mark.parametrize("counter", ["link_downed", "symbol_error"])
def test_an_hour_without_is_an_hour_that_the_agent_saw(lasting: Remembering, tmp_path: Path, counter: str) -> None:
    tree = IbTree(tmp_path, adapters=1)
    agent = PortAgent(lasting, tree)
    story = Story(agent, every_s=30.0)
    story.passes(60)
    tree.port("mlx5_0", f"counters/{counter}", "200")
    story.passes(60)
    kind = {"link_downed": ConditionKind.LINK_FLAPPING, "symbol_error": ConditionKind.LINK_ERRORS}[counter]
    assert story.raised() == {kind}
    story.restarts()
    story.passes(HOUR_S - 60)
    assert story.raised() == {kind}
    assert kind not in {each.kind for each in agent.look().all_clear if not each.but}
    story.passes(120)
    assert story.raised() == set()
    assert AllClear(kind) in agent.look().all_clear


def test_what_holds_of_the_node_is_held_again_and_cleared_by_its_rule(tmp_path: Path) -> None:
    unset = ClockDetail(offset_s=0.0, error_s_max=16.0, unsynchronised=True)
    first, second = NodeJudge(), NodeJudge()
    first.observe(NodeDetail(disks=(FULL_DISK, replace(FULL_DISK, path="/old"))), 0.0)
    for now in (0.0, 600.0):
        first.observe(NodeDetail(clock=unset), now)
    second.take_up(first.book.held(), disks=("/checkpoints",), now=700.0)
    second.observe(NodeDetail(clock=unset), 701.0)
    states = {(each.kind, each.device): each.state for each in second.book.report(701.0)}
    assert states == {
        (ConditionKind.DISK_FULL, "/checkpoints"): ConditionState.RAISED,
        (ConditionKind.DISK_FULL, "/old"): ConditionState.CLEARED,  # nobody looks at it any more
        (ConditionKind.CLOCK_UNSYNCHRONISED, ""): ConditionState.RAISED,
    }
    second.observe(NodeDetail(disks=(replace(FULL_DISK, free_bytes=500),)), 702.0)
    second.observe(NodeDetail(clock=replace(unset, unsynchronised=False)), 702.0)
    assert second.book.held() == ()
    assert {each.kind for each in second.book.all_clear()} == NODE_KINDS - {ConditionKind.MEMORY_LOW}
