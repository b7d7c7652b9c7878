"""What members say of their values as they finish comes before the job's success, whoever restarted between."""

import asyncio
from typing import cast

from forgetful_store import MemoryStore

from holdfast.api.event import CheckpointRecorded, JobSubmitted, MemberEntered, MemberJoined
from holdfast.api.finding import FindingKind
from holdfast.api.membership import WorkersFinished
from holdfast.api.policy import Policy
from holdfast.api.status import JobPhase
from holdfast.api.telemetry import NonFinite, RankNonFinite
from holdfast.watchdog import brain
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server.connection import LauncherConnection
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.peers import heed
from holdfast.watchdog.server.watchdog import Watchdog

JOB = "team/gpt"


def host_on(store: MemoryStore) -> JobHost:
    watchdog = Watchdog(store, brain=brain, senses_for=senses_for, fenced=lambda reason: None)
    watchdog.start()
    return watchdog.host(JOB)


def finishes(host: JobHost, member: str, *odd: RankNonFinite) -> None:
    state = host.job.state
    assert state.round is not None
    connection = cast(LauncherConnection, type("Connection", (), {"member": member}))
    heed(host, connection, WorkersFinished(state.round.number, 50, odd))


def trained(host: JobHost) -> JobHost:
    """Two members of one rank each, a checkpoint of step 40 behind them."""
    host.demand(JobSubmitted(Policy(job=JOB, nodes_min=2, nodes_max=2)))
    for name in ("m0", "m1"):
        host.demand(MemberJoined(name, f"node-{name}", "b", "10.0.0.1", 1, (4000,), warm=True))
    state = host.job.state
    assert state.round is not None
    for name in ("m0", "m1"):
        host.demand(MemberEntered(name, state.round.number, reentrant=True))
    host.demand(CheckpointRecorded(state.round.number, 40, "file:///c"))
    return host


def last_word(host: JobHost, member: str) -> RankNonFinite:
    assert host.job.state.round is not None
    share = host.job.state.round.share_of(member)
    assert share is not None
    return RankNonFinite(share.first_rank, NonFinite(50, 0.0, 50, 1, loss="nan"))


async def test_members_that_finish_with_finite_values_have_succeeded() -> None:
    host = trained(host_on(MemoryStore()))
    for name in ("m0", "m1"):
        finishes(host, name)
    assert host.job.state.phase is JobPhase.SUCCEEDED


async def test_a_nan_in_the_last_step_is_gone_back_for() -> None:
    host = trained(host_on(MemoryStore()))
    finishes(host, "m0", last_word(host, "m0"))
    finishes(host, "m1")
    state = host.job.state
    (incident,) = state.incidents
    assert (incident.kind, incident.culprit.member) == (FindingKind.NON_FINITE, "m0")
    assert state.phase is JobPhase.RECOVERING
    assert state.round is not None
    assert (state.round.restore.step, state.round.restore.unhealthy_from) == (40, 50)


async def test_a_watchdog_that_restarts_between_two_members_has_not_forgotten_the_first_ones_word() -> None:
    store = MemoryStore()
    first = trained(host_on(store))
    finishes(first, "m0", last_word(first, "m0"))
    second = host_on(store)
    await asyncio.sleep(0)
    finishes(second, "m1")
    assert [each.kind for each in second.job.state.incidents] == [FindingKind.NON_FINITE]
    assert second.job.state.phase is not JobPhase.SUCCEEDED
