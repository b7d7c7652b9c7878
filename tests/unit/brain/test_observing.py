"""A job that is only observed: of every fault it is told what would be done, and nothing is."""

from collections.abc import Callable

import pytest
from story import JOB, Story, running

from holdfast.api.event import (
    Event,
    FindingMade,
    MemberDeparting,
    MemberJoined,
    MemberTested,
    NodeChanged,
    NodeDeparting,
    NodeReputed,
    PodChanged,
    ReplicasAgreed,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, SlowCause, Slowness, Subject
from holdfast.api.incident import Incident, IncidentState, Rung
from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.plan import NodeState, PodState
from holdfast.api.policy import CorruptionPolicy, XidAction
from holdfast.api.round import Closed, Idle
from holdfast.api.selftest import CheckResult, TestLevel, Verdict
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.observing import ENDS_THE_ROUND, TOLD_AGAIN_S
from holdfast.watchdog.brain.step import Dismiss, Examine, Notify, Pardon, Publish, Save, Show, Vouch

DOES_SOMETHING = (Show, Publish, Save, Vouch, Examine, Notify, Pardon)
Fault = Callable[[Story], Event]


def observed() -> Story:
    """Three members with ranks and a spare that is asked for a test, of a job whose replicas were seen equal."""
    job = running(3, spares=1, observe=True)
    job.tell(ReplicasAgreed(job.round.number, 45))
    job.resubmit(preflight=TestLevel.LIGHT)
    job.wait(CorruptionPolicy().self_test_every_s)
    job.effects.clear()
    return job


def finding(kind: FindingKind, cause: str, **fields: object) -> Fault:
    def of(job: Story) -> FindingMade:
        share = job.round.share_of("node-2")
        subject = Subject(JOB, node="node-2", member="node-2", rank=share.first_rank if share else None)
        known = {"round": job.round.number, "confidence": Confidence.CERTAIN, "began_at": job.now - 0.5, **fields}
        evidence = (Evidence("test", "it was seen", job.now),)
        return FindingMade(Finding(kind, subject, cause, evidence, **known))  # type: ignore[arg-type]

    return of


def failed_test(job: Story) -> MemberTested:
    """The spare's, which was asked for one when it joined."""
    trial = job.state.trials["node-4"]
    check = CheckResult("matmul", "GPU-0", Verdict.FAILED, "bits differ", 0.1)
    return MemberTested("node-4", trial.number, trial.level, Verdict.FAILED, (check,))


EVICT, WATCH, RESTART = XidAction.EVICT, XidAction.WATCH, XidAction.RESTART
NODE = {"round": None}
GOES_ON: dict[str, tuple[Fault, str, Rung]] = {
    "xid 79": (
        finding(FindingKind.XID, "xid 79", xid=79, asks=EVICT, **NODE),
        "would: evict node node-2",
        Rung.SWAP,
    ),
    "xid 94": (
        finding(FindingKind.XID, "xid 94", xid=94, asks=RESTART, **NODE),
        "would: new round: 3 members",
        Rung.RESPAWN,
    ),
    "xid 48": (
        finding(FindingKind.XID, "xid 48", xid=48, asks=EVICT, **NODE),
        "would: evict node node-2",
        Rung.SWAP,
    ),
    "lost GPU": (finding(FindingKind.GPU_LOST, "GPU lost", **NODE), "would: evict node node-2", Rung.SWAP),
    "degraded PCIe": (
        finding(FindingKind.CONDITION, "PcieDegraded", asks=EVICT, **NODE),
        "would: evict node node-2",
        Rung.SWAP,
    ),
    "flapping link": (
        finding(FindingKind.CONDITION, "LinkFlapping", asks=RESTART, **NODE),
        "would: new round: 3 members",
        Rung.RESPAWN,
    ),
    "full disk": (
        finding(FindingKind.CONDITION, "DiskFull", asks=WATCH, **NODE),
        "would: report it",
        Rung.SKIP_STEP,
    ),
    "hot GPU": (
        finding(FindingKind.THERMAL, "GPU hot", asks=EVICT, **NODE),
        "would: evict node node-2",
        Rung.SWAP,
    ),
    "rising temperature": (
        finding(FindingKind.THERMAL, "temperature rising", asks=WATCH, **NODE),
        "would: report it",
        Rung.SKIP_STEP,
    ),
    "hang of one rank": (finding(FindingKind.HANG, "no progress"), "would: new round: 3 members", Rung.RESPAWN),
    "hang of nobody in particular": (
        finding(FindingKind.HANG, "the step hangs", confidence=Confidence.UNKNOWN),
        "would: new round: 3 members",
        Rung.REENTER,
    ),
    "failed collective": (
        finding(FindingKind.COLLECTIVE_FAILED, "collective failed"),
        "would: new round: 3 members",
        Rung.REENTER,
    ),
    "replica that differs": (
        finding(FindingKind.CORRUPTION, "vote", step=45, agreed_step=40, asks=EVICT),
        "would: evict node node-2",
        Rung.REWIND,
    ),
    "slow node": (
        finding(FindingKind.STRAGGLER, "slow", slow=Slowness(SlowCause.MACHINE, 1.0, 0.3)),
        "would: test the devices of node-2",
        Rung.SWAP,
    ),
    "slow data": (
        finding(FindingKind.STRAGGLER, "slow", slow=Slowness(SlowCause.DATA, 1.0, 0.3), asks=WATCH),
        "would: report it",
        Rung.SKIP_STEP,
    ),
    "loss that is no number": (
        finding(FindingKind.NON_FINITE, "loss not finite", step=45),
        "would: new round: 3 members",
        Rung.REWIND,
    ),
    "loss that rose and stays": (
        finding(FindingKind.DIVERGENCE, "the loss rose and stays", step=45),
        "would: new round: 3 members",
        Rung.REWIND,
    ),
    "batch on two ranks": (
        finding(FindingKind.DATA, "the same batch on two ranks", asks=WATCH, step=45),
        "would: report it",
        Rung.SKIP_STEP,
    ),
    "failed self-test": (failed_test, "would: evict node node-4", Rung.SWAP),
    "spot notice": (
        lambda job: NodeDeparting("node-2", "spot: interrupted", 120.0),
        "would: ask for a checkpoint",
        Rung.SWAP,
    ),
    "drain": (
        lambda job: NodeChanged("node-2", NodeState.DRAINING, "unschedulable"),
        "would: ask for a checkpoint",
        Rung.SWAP,
    ),
    "evicted pod": (
        lambda job: PodChanged("node-2", "node-2", PodState.LEAVING, "evicted"),
        "would: ask for a checkpoint",
        Rung.SWAP,
    ),
    "launcher told to end": (
        lambda job: MemberDeparting("node-2", "SIGTERM", 25.0),
        "would: ask for a checkpoint",
        Rung.SWAP,
    ),
    "bad repute": (
        lambda job: NodeReputed("node-2", quarantined=True, score=3.0, reason="three jobs lost it"),
        "would: ask for a checkpoint",
        Rung.SWAP,
    ),
}
ENDS: dict[str, tuple[Fault, str, Rung]] = {
    "dead worker": (
        finding(FindingKind.PROCESS_EXIT, "signal 9 (SIGKILL)"),
        "would: new round: 3 members, world size 3",
        Rung.RESPAWN,
    ),
    "exception of the script": (
        finding(FindingKind.USER_CODE, "KeyError"),
        "would: new round: 3 members, world size 3",
        Rung.RESPAWN,
    ),
    "checkpoints that cannot be used": (
        finding(FindingKind.NOTHING_TO_RESTORE, "checkpoints are there and none can be used"),
        "would: stop the job and page a human: checkpoints are there and none can be used",
        Rung.PAGE,
    ),
    "lost member": (
        finding(FindingKind.MEMBER_LOST, "connection closed"),
        "would: new round: 3 members, world size 3 (node-4 in, node-2 out)",
        Rung.SWAP,
    ),
    "node that is gone": (
        lambda job: NodeChanged("node-2", NodeState.GONE, "deleted"),
        "would: new round: 3 members, world size 3 (node-4 in, node-2 out)",
        Rung.SWAP,
    ),
    "restarted launcher": (
        lambda job: MemberJoined("node-2", "node-2", "b", "10.0.0.2", 1, (7020, 7021), warm=True),
        "would: new round: 3 members",
        Rung.SWAP,
    ),
    "crash loop": (finding(FindingKind.CRASH_LOOP, "three failures"), "would: stop the job", Rung.PAGE),
}


def told(job: Story, says: str, rung: Rung) -> Incident:
    """The one incident there is: it tells what would be done, and claims nothing else."""
    [incident] = job.state.incidents
    assert (incident.state, incident.rung) == (IncidentState.OBSERVED, rung)
    assert any(each.does.startswith(says) for each in incident.actions), incident.actions
    assert all(each.does.startswith("would: ") and each.reason and each.round is None for each in incident.actions)
    assert (incident.recovered_at, incident.recovered_round, incident.lost_steps) == (None, None, None)
    return incident


@pytest.mark.parametrize(("fault", "says", "rung"), GOES_ON.values(), ids=GOES_ON)
def test_a_fault_that_leaves_all_processes_alive_is_told_and_nothing_changes(
    fault: Fault, says: str, rung: Rung
) -> None:
    job = observed()
    before = job.state
    job.tell(fault(job))
    told(job, says, rung)
    assert not [each for each in job.effects if isinstance(each, DOES_SOMETHING)]
    after = job.state
    assert (after.round, after.desired, after.plan, after.avoided) == (
        before.round,
        before.desired,
        before.plan,
        before.avoided,
    )
    assert (after.phase, after.recovery, after.departures, after.saving) == (JobPhase.RUNNING, None, (), None)
    assert set(after.ranked()) <= {each.name for each in after.eligible()}
    job.wait(600.0)
    assert (job.state.round, job.state.phase) == (before.round, JobPhase.RUNNING)


@pytest.mark.parametrize(("fault", "says", "rung"), ENDS.values(), ids=ENDS)
def test_a_round_that_lost_a_process_is_told_of_and_ends_unhealed(fault: Fault, says: str, rung: Rung) -> None:
    job = observed()
    before = job.state
    job.tell(fault(job))
    told(job, says, rung)
    assert job.state.phase is JobPhase.FAILED
    assert job.state.reason.startswith("observing only, so that this was not healed: ")
    assert says in job.state.reason
    assert isinstance(job.state.desired, Closed)
    assert not job.state.desired.succeeded
    assert (job.state.round, job.state.avoided, job.state.evictions) == (before.round, (), ())


def test_every_kind_of_fault_is_told() -> None:
    assert set(ENDS_THE_ROUND) == set(FindingKind)
    job, kinds = observed(), set()
    for fault, _, _ in (*GOES_ON.values(), *ENDS.values()):
        kinds.update({event.finding.kind} if isinstance(event := fault(job), FindingMade) else set())
    assert kinds | {FindingKind.SELF_TEST} == set(FindingKind)
    assert len(GOES_ON) + len(ENDS) >= 20


def test_what_is_found_again_and_again_is_told_now_and_then() -> None:
    job = observed()
    fault = GOES_ON["replica that differs"][0]
    for _ in range(10):
        job.tell(fault(job))
        job.wait(TOLD_AGAIN_S / 4)
    assert len(job.state.incidents) == 3


def test_a_node_gets_no_bad_repute_on_top_of_what_was_told_of_it() -> None:
    job = observed()
    job.xid(2, 79)
    job.tell(GOES_ON["bad repute"][0](job))
    assert [each.kind for each in job.state.incidents] == [FindingKind.XID]


def test_a_spare_that_goes_is_a_fact_and_no_fault() -> None:
    job = observed()
    job.lose(4)
    assert job.state.incidents == ()
    assert job.state.member("node-4") is None
    assert job.state.phase is JobPhase.RUNNING


def test_members_that_come_later_do_not_make_the_round_grow() -> None:
    job = Story(nodes_max=3, observe=True)
    job.join(1, 2).wait(60.0).run(1)
    number = job.round.number
    job.join(3).wait(600.0)
    assert job.round.number == number


def test_what_a_human_asks_for_is_done() -> None:
    job = observed()
    number = job.round.number
    assert job.ask(InterventionAction.EVICT, node="node-2").outcome == "node node-2 evicted"
    assert job.round.number == number + 1
    assert "node-2" not in job.round.names


def test_a_run_that_everybody_left_begins_anew_when_they_come_back() -> None:
    job = running(3, spares=1, observe=True)
    for number in (1, 2, 3, 4):
        job.leave(number)
    assert job.state.phase is not JobPhase.FAILED
    assert isinstance(job.state.desired, Idle)
    job.join(1, 2, 3, boot="b").run(1)
    assert job.state.phase is JobPhase.RUNNING


STANDSTILLS = {name: GOES_ON[name] for name in ("failed collective", "hang of nobody in particular")}


@pytest.mark.parametrize(("fault", "says", "rung"), STANDSTILLS.values(), ids=STANDSTILLS)
@pytest.mark.parametrize("comes_back", [False, True])
def test_a_round_that_misses_a_member_that_left_ends_unhealed(
    fault: Fault, says: str, rung: Rung, *, comes_back: bool
) -> None:
    job = observed()
    job.leave(3)
    assert (job.state.phase, job.incident.cause) == (JobPhase.RUNNING, "launcher left")
    if comes_back:
        job.wait(1.0).join(3, boot="b")
    job.tell(fault(job))
    assert (job.incident.state, job.incident.rung) == (IncidentState.OBSERVED, rung)
    assert job.state.phase is JobPhase.FAILED
    assert says in job.state.reason
    assert isinstance(job.state.desired, Closed)


def test_a_round_that_stands_still_while_it_is_not_known_who_is_there_goes_on() -> None:
    job = observed()
    job.restart_watchdog()
    job.tell(GOES_ON["hang of one rank"][0](job))
    assert job.state.phase is JobPhase.RUNNING


def test_a_job_that_ends_answers_what_was_asked_of_it() -> None:
    job = observed()
    job.ask(InterventionAction.CHECKPOINT)
    assert job.answer() is None
    job.tell(ENDS["dead worker"][0](job))
    answer = job.answer()
    assert answer is not None
    assert answer.state is InterventionState.REFUSED


def test_a_launcher_that_counts_as_lost_is_told_so() -> None:
    job = observed()
    job.tell(ENDS["lost member"][0](job))
    assert [each.members for each in job.effects if isinstance(each, Dismiss)] == [("node-2",)]


def test_a_policy_that_lets_it_act_again_is_obeyed_from_the_next_fault_on() -> None:
    job = observed()
    job.xid(2, 79)
    assert job.state.avoided == ()
    job.resubmit(observe=False)
    job.xid(2, 79)
    assert job.state.avoided_nodes == {"node-2"}


def test_what_is_not_healthy_is_a_fact_and_the_next_commit_is_answered_with_it() -> None:
    job = observed()
    job.tell(finding(FindingKind.NON_FINITE, "loss is nan", step=47)(job))
    assert job.state.unhealthy_from == 47
    job.commit(60)
    assert [each.verified.unhealthy_from for each in job.effects if isinstance(each, Vouch)] == [47]


def test_a_step_that_the_script_left_out_is_no_word_of_what_would_be_done() -> None:
    job = observed()
    job.tell(finding(FindingKind.NON_FINITE, "loss is nan", step=47, skipped=True)(job))
    assert (job.incident.state, job.incident.rung) == (IncidentState.RECOVERED, Rung.SKIP_STEP)
