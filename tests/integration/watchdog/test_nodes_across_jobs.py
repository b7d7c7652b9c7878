"""What one job finds out about a node, every job knows, also the next one."""

import msgspec
from peers import JOB, Rig, policy_of, rigged

from holdfast.api.event import FindingMade, InterventionRequested, JobSubmitted, NodeChanged
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import Action, Rung
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.plan import NodeState
from holdfast.watchdog.brain.incidents import act, open_incident
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import Effect
from holdfast.watchdog.server.fleet import FleetMemory
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.settings import NO_CLUSTER_POLICY

OTHER = "research/other"
BAD = "node-m2"


async def two_jobs(rig: Rig) -> tuple[JobHost, JobHost]:
    """Job A trains on two nodes, and so may job B."""
    await rig.submit(policy_of(nodes=2))
    first, second = await rig.launcher("m1"), await rig.launcher("m2")
    await first.enter()
    await second.enter()
    return rig.watchdog.host(JOB), new_job(rig, OTHER)


def new_job(rig: Rig, name: str) -> JobHost:
    host = rig.watchdog.host(name)
    host.record(JobSubmitted(msgspec.structs.replace(policy_of(nodes=2), job=name)))
    return host


def lose_gpu(host: JobHost) -> None:
    now = host.clock.now()
    subject = Subject(host.job.name, node=BAD, gpu="GPU-1")
    evidence = (Evidence("test", "it answers no more", now),)
    host.record(FindingMade(Finding(FindingKind.GPU_LOST, subject, "GPU lost", evidence, Confidence.CERTAIN, now)))


def give_back(host: JobHost) -> None:
    request = InterventionRequest("i1", host.job.name, InterventionAction.RETURN, "new GPU", node=BAD)
    host.record(InterventionRequested(request))


async def test_a_node_that_lost_a_gpu_in_one_job_is_kept_away_from_by_all_until_a_human_returns_it() -> None:
    async with rigged() as rig:
        one, other = await two_jobs(rig)
        lose_gpu(one)
        assert other.job.state.avoided_nodes == {BAD}
        assert other.job.state.avoided[0].reason == f"other jobs' evidence: GPU lost in {JOB}"
        assert other.job.state.evictions == ()
        assert new_job(rig, "research/third").job.state.avoided_nodes == {BAD}
        give_back(one)
        assert one.job.state.avoided == other.job.state.avoided == ()


async def test_what_a_job_taught_outlives_it_and_the_watchdog() -> None:
    async with rigged() as rig:
        one, _ = await two_jobs(rig)
        lose_gpu(one)
        rig.watchdog.forget(JOB)
        assert new_job(rig, "research/third").job.state.avoided_nodes == {BAD}
        fence = rig.watchdog.leading
        assert fence is not None
        fresh = FleetMemory(rig.watchdog.store, fence, NO_CLUSTER_POLICY)
        assert fresh.quarantined == (BAD,)
        assert fresh.told_of(BAD, one.clock.now(), JOB).startswith(f"GPU lost in {JOB}")


async def test_a_job_that_takes_the_name_of_another_is_told_as_well() -> None:
    async with rigged() as rig:
        one, other = await two_jobs(rig)
        other.record(JobSubmitted(msgspec.structs.replace(policy_of(nodes=2), job=OTHER, uid="a")))
        lose_gpu(one)
        other.record(JobSubmitted(msgspec.structs.replace(policy_of(nodes=2), job=OTHER, uid="b")))
        assert other.job.state.incarnation == "b"
        assert other.job.state.avoided_nodes == {BAD}


async def test_a_node_that_is_called_well_stays_untrusted_while_it_is_quarantined() -> None:
    async with rigged() as rig:
        one, _ = await two_jobs(rig)
        rig.watchdog.fleet.learn(one, gpu_lost_elsewhere(one), one.clock.now(), nodes=2)
        rig.watchdog.fleet.tell(one, one.clock.now())
        assert [each.node for each in one.job.state.departures] == [BAD]
        one.record(NodeChanged(BAD, NodeState.READY))
        one.record(JobSubmitted(msgspec.structs.replace(policy_of(nodes=2), spares=1)))
        assert [each.node for each in one.job.state.departures] == [BAD]


def gpu_lost_elsewhere(host: JobHost) -> list[Effect]:
    now = host.clock.now()
    subject = Subject(OTHER, node=BAD)
    finding = Finding(FindingKind.GPU_LOST, subject, "GPU lost", (), Confidence.CERTAIN, now)
    state, incident, _ = open_incident(JobState(OTHER), finding, now)
    return list(act(state, (incident.id,), Action(Rung.SWAP, now, f"evict node {BAD}", "GPU lost"))[1])
