"""Which member a launcher may be, while the operator and pods come and go."""

import asyncio
from typing import cast

import pytest
from forgetful_store import MemoryStore

from holdfast.api.event import JobSubmitted, MemberEntered, MemberFinished, MemberJoined
from holdfast.api.membership import Join
from holdfast.api.plan import PodObserved, PodState
from holdfast.api.policy import Policy
from holdfast.watchdog import brain
from holdfast.watchdog.access.auth import Caller, Role
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server import identity
from holdfast.watchdog.server.connection import BadMessage, Connection
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.identity import NotSeenYet, check_identity
from holdfast.watchdog.server.watchdog import Watchdog

JOB = "team/gpt"
POLICY = Policy(job=JOB, nodes_min=1, nodes_max=2)
SUBMITTED = Policy(job=JOB, nodes_min=1, nodes_max=2, uid="of the TrainingJob")
OPERATOR = cast(Connection, object())


def pod(name: str) -> Caller:
    return Caller("system:serviceaccount:team:default", frozenset({Role.INGEST}), "team", name)


def join(member: str, node: str, boot: str = "b1") -> Join:
    return Join(JOB, member, node, boot, "10.0.0.1", 1, (4000,), warm=True)


def joined(member: str, node: str) -> MemberJoined:
    said = join(member, node)
    return MemberJoined(
        **{name: getattr(said, name) for name in MemberJoined.__struct_fields__ if name != "transfer"}
    )


def running(member: str, node: str) -> PodObserved:
    return PodObserved(member, node, PodState.RUNNING)


@pytest.fixture
async def host(monkeypatch: pytest.MonkeyPatch) -> JobHost:
    monkeypatch.setattr(identity, "SEEN_WITHIN_S", 0.0)
    watchdog = Watchdog(MemoryStore(), brain=brain, senses_for=senses_for, fenced=lambda reason: None)
    watchdog.start()
    return watchdog.host(JOB)


async def test_what_was_seen_before_the_operator_went_refuses_nobody_for_good(host: JobHost) -> None:
    host.demand(JobSubmitted(SUBMITTED))
    host.pods.see(running("gpt-1", "n1"))
    with pytest.raises(NotSeenYet):
        await check_identity(host, pod("gpt-1"), join("gpt-1", "n2"))
    host.operators.add(OPERATOR)
    with pytest.raises(BadMessage, match="runs on n1"):
        await check_identity(host, pod("gpt-1"), join("gpt-1", "n2"))


async def test_a_pod_of_the_same_name_on_another_node_is_waited_for(
    host: JobHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "SEEN_WITHIN_S", 60.0)
    host.demand(JobSubmitted(SUBMITTED))
    host.operators.add(OPERATOR)
    host.pods.see(running("gpt-1", "n1"))
    asked = asyncio.create_task(check_identity(host, pod("gpt-1"), join("gpt-1", "n2")))
    await asyncio.sleep(0)
    host.pods.see(running("gpt-1", "n2"))
    await asked


async def test_of_a_pod_one_launcher_waits_and_the_others_are_sent_away(
    host: JobHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "SEEN_WITHIN_S", 60.0)
    host.demand(JobSubmitted(SUBMITTED))
    host.operators.add(OPERATOR)
    waits = asyncio.create_task(check_identity(host, pod("gpt-1"), join("gpt-1", "n1")))
    await asyncio.sleep(0)
    for _ in range(3):
        with pytest.raises(NotSeenYet, match="another launcher of pod gpt-1 waits"):
            await check_identity(host, pod("gpt-1"), join("gpt-1", "n1"))
    other = asyncio.create_task(check_identity(host, pod("gpt-2"), join("gpt-2", "n1")))
    await asyncio.sleep(0)
    for name in ("gpt-1", "gpt-2"):
        host.pods.see(running(name, "n1"))
    await asyncio.gather(waits, other)
    assert not host.pods.is_asked("gpt-1")


@pytest.mark.parametrize("policy", [POLICY, None])
async def test_who_joined_before_the_job_was_submitted_is_asked_like_others(
    host: JobHost, policy: Policy | None
) -> None:
    if policy is not None:
        host.demand(JobSubmitted(policy))
    host.demand(joined("bystander", "n9"))
    host.demand(JobSubmitted(SUBMITTED))
    assert host.is_submitted
    with pytest.raises(NotSeenYet):
        await check_identity(host, pod("bystander"), join("bystander", "n9"))


async def test_a_member_need_not_wait_for_the_operator_after_a_restart(host: JobHost) -> None:
    host.demand(JobSubmitted(SUBMITTED))
    host.demand(joined("gpt-0", "n1"))
    await check_identity(host, pod("gpt-0"), join("gpt-0", "n1"))


async def test_nobody_ends_a_job_before_it_is_submitted(host: JobHost) -> None:
    """A pod beside it had brought a job of its name, and brought it to its end."""
    host.demand(JobSubmitted(POLICY))
    host.demand(joined("bystander", "n9"))
    host.demand(joined("bystander-2", "n8"))
    state = host.job.state
    assert state.round is not None
    for each in state.round.ranks:
        host.demand(MemberEntered(each.member, state.round.number, reentrant=True))
        host.demand(MemberFinished(each.member, state.round.number, 5))
    assert host.job.state.ended_at is not None
    host.demand(JobSubmitted(SUBMITTED))
    assert host.is_submitted
    assert host.job.state.ended_at is None
