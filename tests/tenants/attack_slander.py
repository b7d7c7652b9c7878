"""What one tenant's job says of the nodes that it shares moves that job, and takes the nodes from nobody else.

Each of these reaches its mark: the intruder's own job believes it. Where all namespaces have one owner
(`cordonOn: anything`) the same words do take the node away: `test_attacks.py` turns the defence off and sees it.
"""

from dataclasses import dataclass

from neighbours import Scene
from peers import LauncherPeer, join

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.membership import (
    CheckpointCommitted,
    CollectiveFailed,
    Departing,
    Restored,
    Tested,
    WorkerExited,
)
from holdfast.api.policy import EvictionBudget, RestartBudget, ThermalPolicy, XidAction
from holdfast.api.selftest import CheckResult, TestLevel, TestWanted, Verdict
from holdfast.api.telemetry import GpuDisappeared, XidRaised

# Two faults within a minute count as one, and four lost connections, or ten killed workers, as a broken node.
APART_S = 61.0
LOST = 8
KILLED = 12
GENEROUS = {
    "evictions": EvictionBudget(count=1000, fraction=1.0),
    "restarts": RestartBudget(count=1000, backoff_s=0.0),
}


@dataclass
class Evil:
    """The intruder's own job: its two pods are members of it, on the victim's nodes."""

    there: Scene
    first: LauncherPeer
    second: LauncherPeer
    round: int = 0

    async def enter(self) -> None:
        """Both enter the next round."""
        shown = await self.first.enter(after=self.round)
        await self.second.enter(after=self.round)
        self.round = shown.number

    def believed(self) -> bool:
        """Whether the intruder's own job keeps away from node-1."""
        avoided = self.there.host(self.there.intruder).job.state.avoided_nodes
        return "node-1" in self.there.kept_from(self.there.intruder) | avoided

    def is_running(self) -> bool:
        """Whether the round it entered is the newest."""
        newest = self.there.host(self.there.intruder).job.state.round
        return newest is not None and newest.number == self.round

    def causes(self) -> list[str]:
        return [each.cause for each in self.there.host(self.there.intruder).job.state.incidents]


async def joined(there: Scene, **fields: object) -> Evil:
    """Its pods have joined; what its spec may say is said so that each of its words weighs most."""
    await there.operate(there.intruder, {"evil-0": "node-1", "evil-1": "node-2"}, **(GENEROUS | fields))
    first = await there.launcher(there.intruder, "evil-0", "node-1")
    second = await there.launcher(there.intruder, "evil-1", "node-2")
    return Evil(there, first, second)


async def evil(there: Scene, **fields: object) -> Evil:
    """It runs."""
    made = await joined(there, **fields)
    await made.enter()
    return made


async def slandered(there: Scene) -> None:
    """Whatever the intruder's job made of it, the nodes stay in service and the victim keeps them."""
    await there.settled()
    plan = there.host(there.intruder).job.state.plan
    assert plan is None or plan.cordon == ()
    assert there.watchdog.fleet.quarantined == ()


BROKEN = CheckResult("memory", "cpu", Verdict.FAILED, "it is broken", 1.0)


async def a_self_test_is_answered_with_failed(there: Scene) -> None:
    made = await joined(there, preflight=TestLevel.LIGHT)
    asked = await made.first.shown(TestWanted)
    await made.first.say(Tested(asked.number, asked.level, Verdict.FAILED, 1.0, (BROKEN,), "it is broken"))
    await there.until(made.believed)
    await slandered(there)


async def self_tests_that_nobody_asked_for_are_answered_with_failed(there: Scene) -> None:
    made = await evil(there)
    for number in range(5):
        await made.first.say(Tested(number, TestLevel.LIGHT, Verdict.FAILED, 1.0, (BROKEN,), "it is broken"))
    await made.first.say(WorkerExited(made.round, 0, age_s=0.0, exit_code=1))
    await there.until(made.causes)  # said after them, so that they were taken
    assert not made.believed()
    await slandered(there)


async def workers_die_again_and_again(there: Scene) -> None:
    """In each round that runs one is killed, as by a broken node, until its own job leaves the node."""
    made = await evil(there)
    for _ in range(KILLED):
        says = "CUDA error: uncorrectable ECC error"
        await made.first.say(WorkerExited(made.round, 0, age_s=0.0, signal=9, error=says, began=True))
        await there.until(lambda: not made.is_running() or made.believed())
        await there.later(APART_S)
        if made.believed():
            break
        await made.enter()
    assert made.believed()
    await slandered(there)


async def a_collective_breaks_again_and_again(there: Scene) -> None:
    made = await evil(there)
    await made.first.say(CollectiveFailed(made.round, 0, age_s=0.0, error="node-2 is broken"))
    await there.later(APART_S)
    await slandered(there)


async def members_leave_without_a_word_again_and_again(there: Scene) -> None:
    """A lost connection that nothing followed is one fault: so it is another job each time."""
    for number in range(LOST):
        job = f"{there.tokens.intruder}/lost-{number}"
        await there.operate(job, {"evil-0": "node-1"}, nodes_max=1, **GENEROUS)
        peer = await there.launcher(job, "evil-0", "node-1")
        await peer.enter()
        await peer.socket.close()
        await there.until(lambda job=job: there.host(job).job.state.incidents)
        await there.later(APART_S)
        if "node-1" in there.kept_from(there.intruder):
            break
    assert "node-1" in there.kept_from(there.intruder)
    await slandered(there)


async def a_departure_is_announced(there: Scene) -> None:
    made = await evil(there)
    await made.first.say(Departing("the node is on fire", 1.0))
    await there.until(lambda: there.host(there.intruder).job.state.departures)
    await slandered(there)


async def its_own_spec_leaves_each_node_for_next_to_nothing(there: Scene) -> None:
    """An error that the catalogue ignores, and a clock: the agent's honest word, made much of."""
    await evil(
        there,
        xid_actions={63: XidAction.EVICT},
        condition_actions={"ClockUnsynchronised": XidAction.EVICT},
        thermal=ThermalPolicy(margin_c=90.0, sustained_s=1.0),
        spares=1,
    )
    clock = Condition(ConditionKind.CLOCK_UNSYNCHRONISED, ConditionState.RAISED, 0.0, "it is not")
    agent = await there.agent(there.intruder, "node-1")
    await agent.say(there.report("node-1", events=(XidRaised("GPU-1", 63, 0.0),), conditions=(clock,)))
    host = there.host(there.intruder)
    await there.until(lambda: "xid 63" in [each.cause for each in host.job.state.incidents if each.own_rule])
    await slandered(there)


async def a_kernel_of_its_own_raises_an_xid(there: Scene) -> None:
    """XID 31 and 13 are raised by a program that reads where nothing is, as well as by broken memory."""
    made = await evil(there)
    agent = await there.agent(there.intruder, "node-1")
    for xid in (13, 31, 43, 45):
        await agent.say(there.report("node-1", events=(XidRaised("GPU-1", xid, 0.0),)))
        await there.later(APART_S)
    assert made.causes()
    await slandered(there)


async def it_fills_the_disk_and_the_memory_of_the_node(there: Scene) -> None:
    made = await evil(
        there, condition_actions={"DiskFull": XidAction.EVICT, "MemoryLow": XidAction.EVICT}, spares=1
    )
    said = [
        Condition(kind, ConditionState.RAISED, 0.0, "nothing is left")
        for kind in (ConditionKind.DISK_FULL, ConditionKind.MEMORY_LOW)
    ]
    agent = await there.agent(there.intruder, "node-1")
    await agent.say(there.report("node-1", conditions=tuple(said)))
    await there.until(made.causes)
    await slandered(there)


async def checkpoints_of_the_victim_are_claimed(there: Scene) -> None:
    made = await evil(there)
    await made.first.say(CheckpointCommitted(made.round, step=10**6, uri="file:///victim/step-1000000"))
    await made.first.say(Restored(made.round, rank=0, step=10**6))
    await there.until(lambda: there.host(there.intruder).job.state.checkpoints)


async def an_invented_job_fails_on_the_victims_nodes(there: Scene) -> None:
    """Jobs that nobody submitted: one after the other has a worker killed on node-2, until it is enough."""
    namespace = there.tokens.intruder
    for number in range(KILLED):
        job = f"{namespace}/job-{number}"
        peer = LauncherPeer(await there.connect("/v1/member", "pod evil-0"), "m")
        await peer.say(join("m", job=job, node="node-2", nodes=(1, 1)))
        shown = await peer.enter()
        await peer.say(WorkerExited(shown.number, 0, age_s=0.0, signal=9, error="CUDA error"))
        await there.until(lambda job=job: there.host(job).job.state.incidents)
        await there.later(APART_S)
        if "node-2" in there.kept_from(there.intruder):
            break
    assert "node-2" in there.kept_from(there.intruder)
    await slandered(there)


async def two_jobs_of_one_namespace_say_the_same(there: Scene) -> None:
    """They are one voice: two namespaces would be two."""
    await a_self_test_is_answered_with_failed(there)
    job = f"{there.tokens.intruder}/other"
    await there.operate(job, {"evil-1": "node-2"}, preflight=TestLevel.LIGHT)
    peer = await there.launcher(job, "evil-1", "node-2")
    asked = await peer.shown(TestWanted)
    await peer.say(Tested(asked.number, asked.level, Verdict.FAILED, 1.0, (BROKEN,), "it is broken"))
    await there.until(lambda: there.kept_from(job) == {"node-1", "node-2"})
    await slandered(there)


ATTACKS = (
    a_self_test_is_answered_with_failed,
    self_tests_that_nobody_asked_for_are_answered_with_failed,
    workers_die_again_and_again,
    a_collective_breaks_again_and_again,
    members_leave_without_a_word_again_and_again,
    a_departure_is_announced,
    its_own_spec_leaves_each_node_for_next_to_nothing,
    a_kernel_of_its_own_raises_an_xid,
    it_fills_the_disk_and_the_memory_of_the_node,
    checkpoints_of_the_victim_are_claimed,
    an_invented_job_fails_on_the_victims_nodes,
    two_jobs_of_one_namespace_say_the_same,
)


# Of whom it is believed: the node's agent, whichever job hears it, and the victim's own member.


async def an_agent_tells_of_broken_hardware(there: Scene) -> None:
    await evil(there)
    agent = await there.agent(there.intruder, "node-1")
    await agent.say(there.report("node-1", events=(GpuDisappeared("GPU-1", 0.0),)))
    await there.until(lambda: there.watchdog.fleet.quarantined == ("node-1",))


async def a_member_of_the_victim_is_killed(there: Scene) -> None:
    number = there.host(there.victim).job.state.round
    assert number is not None
    await there.members["gpt-0"].say(WorkerExited(number.number, 0, age_s=0.0, signal=9, error="CUDA error"))
    await there.until(lambda: there.host(there.victim).job.state.incidents)


async def a_member_of_the_victim_departs(there: Scene) -> None:
    await there.members["gpt-0"].say(Departing("the node is drained", 60.0))
    await there.until(lambda: there.host(there.victim).job.state.departures)


async def a_second_namespace_says_it_too(there: Scene) -> None:
    """Both tenants' jobs have found the node broken: nobody's word alone."""
    await a_self_test_is_answered_with_failed(there)
    job = f"{there.tokens.victim}/tested"
    await there.operate(job, {"bystander": "node-1"}, preflight=TestLevel.LIGHT)
    peer = await there.launcher(job, "bystander", "node-1")
    asked = await peer.shown(TestWanted)
    await peer.say(Tested(asked.number, asked.level, Verdict.FAILED, 1.0, (BROKEN,), "it is broken"))
    await there.until(lambda: there.watchdog.fleet.quarantined == ("node-1",))


CONTROLS = (
    an_agent_tells_of_broken_hardware,
    a_member_of_the_victim_is_killed,
    a_member_of_the_victim_departs,
    a_second_namespace_says_it_too,
)
