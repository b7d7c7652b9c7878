"""What is still told of a job once it has ended, and once its watchdog is gone."""

import msgspec
import pytest
from forgetful_store import MemoryStore

from holdfast.api.event import (
    InterventionRequested,
    JobSubmitted,
    MemberEntered,
    MemberFinished,
    MemberJoined,
    MemberLeft,
    RoundProgressed,
)
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.policy import Policy
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Round
from holdfast.api.selftest import TestLevel
from holdfast.api.status import Hearing, JobPhase, LastSeen, NotFinite, RankStatus
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeReport, ProcessState, RankSample
from holdfast.watchdog import brain
from holdfast.watchdog.detectors.progress import Progress
from holdfast.watchdog.journal.lastseen import aged, completed, kept, name_of, recall
from holdfast.watchdog.senses import Senses
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.store.store import Snapshot

JOB = "team/run"
RUNNING = ProcessState.RUNNING
GPU = GpuSample("GPU-1", 0, GpuHealth.HEALTHY, temperature_c=60.0)


def watchdog_over(store: MemoryStore) -> Watchdog:
    made = Watchdog(
        store, brain=brain, senses_for=lambda policy: Senses((), Progress(policy)), fenced=lambda _: None
    )
    made.start()
    return made


def trained(watchdog: Watchdog, *, step: int = 7) -> JobHost:
    """A job of one member with two ranks that have made steps."""
    host = watchdog.host(JOB)
    host.demand(JobSubmitted(Policy(JOB, 1, 1, processes_per_node=2)))
    host.record(MemberJoined("m1", "n1", "boot", "h", 2, (4000,), warm=True))
    host.record(MemberEntered("m1", number_of(host), reentrant=True))
    say(host, step)
    return host


def number_of(host: JobHost) -> int:
    assert isinstance(host.job.state.desired, Round)
    return host.job.state.desired.number


def say(host: JobHost, step: int, *, process: ProcessState = RUNNING, number: int | None = None) -> None:
    """The node's agent reports both ranks at `step`."""
    newest = host.job.state.round
    assert newest is not None
    shown = newest.number if number is None else number
    ages = (0.1, 0.1)
    ranks = (RankSample(shown, rank, process, Phase.IDLE, *ages, step=step, loss=float(rank)) for rank in (0, 1))
    host.take_report(NodeReport("n1", "boot", 1, ranks=tuple(ranks), gpus=(GPU,)))


def finish(host: JobHost) -> None:
    host.record(MemberFinished("m1", number_of(host), last_step=9))
    assert host.job.state.phase is JobPhase.SUCCEEDED


async def test_an_ended_job_shows_its_last_ranks_and_nodes_also_what_came_after_the_end() -> None:
    host = trained(watchdog_over(MemoryStore()))
    finish(host)
    say(host, 9, process=ProcessState.GONE)
    last = host.last_seen()
    assert [(each.rank, each.node, each.step, each.process) for each in last.ranks] == [
        (0, "n1", 9, ProcessState.GONE),
        (1, "n1", 9, ProcessState.GONE),
    ]
    assert (last.status.loss, last.status.step) == (0.5, 9)
    assert last.status.ended_at is not None
    (node,) = last.nodes
    assert (node.node, node.hearing, node.gpus) == ("n1", Hearing.ENDED, (GPU,))


async def test_a_node_says_which_self_test_it_owes_until_its_job_is_over() -> None:
    host = trained(watchdog_over(MemoryStore()))
    host.demand(InterventionRequested(InterventionRequest("i1", JOB, InterventionAction.TEST, "slow", node="n1")))
    say(host, 8)
    (node,) = host.last_seen().nodes
    assert node.tested == "light self-test pending, requested: slow"
    full = InterventionRequest("i2", JOB, InterventionAction.TEST, "slow", node="n1", level=TestLevel.FULL)
    host.demand(InterventionRequested(full))
    (node,) = host.last_seen().nodes
    assert node.tested.startswith("full self-test pending, requested: slow; waits for ")
    finish(host)
    (node,) = host.last_seen().nodes
    assert node.tested == ""


async def test_nothing_of_an_older_round_is_taken_for_the_last() -> None:
    host = trained(watchdog_over(MemoryStore()))
    before = number_of(host)
    finish(host)
    say(host, 5, number=before - 1)
    assert [each.step for each in host.last_seen().ranks] == [7, 7]


@pytest.mark.parametrize("stops", [True, False], ids=["stopped", "killed"])
async def test_another_watchdog_tells_the_same_of_a_job_that_ended_before(stops: bool) -> None:
    store = MemoryStore()
    first = watchdog_over(store)
    host = trained(first)
    finish(host)
    host._keep()  # what the event loop does once the launchers are told
    if stops:
        say(host, 9, process=ProcessState.GONE)
        first.stop()
    again = watchdog_over(store)
    taken = again.known(JOB)
    assert taken is not None
    assert [(each.step, each.process) for each in taken.last_seen().ranks] == [
        (9, ProcessState.GONE) if stops else (7, ProcessState.UNKNOWN)
    ] * 2
    assert [each.gpus for each in taken.last_seen().nodes] == [(GPU,)]
    again.stop()
    assert [each.step for each in _recalled(store).ranks] == [9 if stops else 7] * 2, "not kept over by less"


async def test_a_job_that_is_forgotten_leaves_nothing() -> None:
    store = MemoryStore()
    watchdog = watchdog_over(store)
    host = trained(watchdog)
    finish(host)
    host._keep()
    assert kept(store, JOB) is not None
    watchdog.forget(JOB)
    assert kept(store, JOB) is None


async def test_of_a_run_that_was_interrupted_the_last_look_is_kept() -> None:
    store = MemoryStore()
    watchdog = watchdog_over(store)
    trained(watchdog)
    watchdog.stop()
    last = _recalled(store)
    assert last.status.ended_at is None
    assert [(each.step, each.loss) for each in last.ranks] == [(7, 0.0), (7, 1.0)]
    later = aged(last, last.at + 60.0)
    assert {each.process for each in later.ranks} == {ProcessState.UNKNOWN}, "nobody knows that they run"
    assert [each.heard_age_s for each in later.ranks] == [
        pytest.approx((each.heard_age_s or 0.0) + 60.0) for each in last.ranks
    ]


async def test_a_round_that_was_never_heard_of_hides_nothing() -> None:
    """Its members are told to stop one after the other: of the rest a round is formed that trains no more."""
    store = MemoryStore()
    watchdog = watchdog_over(store)
    host = trained(watchdog)
    host.record(MemberJoined("m2", "n2", "boot", "h", 2, (4000,), warm=True))
    host.record(MemberLeft("m1", "stopped"))
    assert host.job.state.step is None
    watchdog.stop()
    last = _recalled(store)
    assert [(each.rank, each.member, each.step) for each in last.ranks] == [(0, "m1", 7), (1, "m1", 7)]
    assert (last.status.step, last.status.loss) == (7, 0.5)


@pytest.mark.parametrize(
    ("losses", "mean"),
    [
        ((1.0, 3.0, None), 2.0),
        ((1.0, NotFinite.NAN), NotFinite.NAN),
        ((NotFinite.INFINITE, NotFinite.MINUS_INFINITE), NotFinite.NAN),
        ((None, None), None),
    ],
)
async def test_a_loss_that_is_not_finite_is_kept_as_what_it_is(
    losses: tuple[float | NotFinite | None, ...], mean: float | NotFinite | None
) -> None:
    last = trained(watchdog_over(MemoryStore())).last_seen()
    ranks = tuple(
        RankStatus(rank, "m1", "n1", ProcessState.UNKNOWN, loss=loss) for rank, loss in enumerate(losses)
    )
    status = msgspec.structs.replace(last.status, loss=None)
    told = completed(msgspec.structs.replace(last, status=status, ranks=ranks))
    assert told.status.loss == mean
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(told), type=LastSeen) == told


async def test_of_a_run_that_was_killed_the_journal_tells_how_far_it_was() -> None:
    store = MemoryStore()
    first = watchdog_over(store)
    trained(first, step=7)
    first.stop()
    second = watchdog_over(store)
    host = second.known(JOB)
    assert host is not None
    host.record(RoundProgressed(number_of(host), 42))
    last = _recalled(store)  # the second never had the time to keep anything
    assert last.status.step == 42
    assert [(each.rank, each.node, each.step, each.loss) for each in last.ranks] == [
        (0, "n1", 42, None),
        (1, "n1", 42, None),
    ]
    assert [(each.node, each.hearing, each.gpus) for each in last.nodes] == [("n1", Hearing.ENDED, ())]


def test_of_a_job_that_was_never_submitted_nothing_is_known() -> None:
    assert recall(MemoryStore(), JOB, brain=brain) is None


def test_what_another_version_kept_is_passed_over() -> None:
    store = MemoryStore()
    fence = store.claim()
    store.save(name_of(JOB), Snapshot(1, 1.0, msgspec.msgpack.encode({"at": "noon"})), fence=fence)
    assert kept(store, JOB) is None


def _recalled(store: MemoryStore) -> LastSeen:
    last = recall(store, JOB, brain=brain)
    assert last is not None
    return last
