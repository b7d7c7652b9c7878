"""The status people read, from what is decided and what is seen."""

from collections.abc import Sequence

import msgspec
import pytest

from holdfast.api.event import Event
from holdfast.api.policy import Policy
from holdfast.api.round import Closed, Endpoint, Entry, Idle, MemberRanks, Restore, Round
from holdfast.api.selftest import TestLevel
from holdfast.api.status import Checkpoint, JobPhase, Membership, RankStatus
from holdfast.watchdog.brain.ledger import Ledger
from holdfast.watchdog.brain.ledgerofbefore import LedgerOfBefore
from holdfast.watchdog.brain.roster import Member, MemberState, Roster
from holdfast.watchdog.brain.state import JobState, Trial
from holdfast.watchdog.brain.status import shown_phase, status_of
from holdfast.watchdog.detectors.detector import Sample
from holdfast.watchdog.detectors.progress import Newest

JOB = "research/gpt"
ROUND = Round(JOB, 3, (MemberRanks("m1", "n1", 0, 2),), Endpoint("h", 1), Restore(), Entry.REENTER, reason="test")


def member(name: str, standing: MemberState = MemberState.PRESENT) -> Member:
    return Member(name, f"node-{name}", "b", "h", 2, (1,), warm=True, standing=standing, joined_at=0.0)


def state(**fields: object) -> JobState:
    return msgspec.structs.replace(JobState(job=JOB), **fields)


class FixedGauge:
    def __init__(self, step: int | None) -> None:
        self._step = step

    def observe(self, sample: Sample, now: float) -> Sequence[Event]:
        return ()

    def ranks(self, now: float) -> tuple[RankStatus, ...]:
        return ()

    def last_ranks(self, now: float) -> tuple[RankStatus, ...]:
        return ()

    def newest(self) -> Newest:
        return Newest()

    def step(self) -> int | None:
        return self._step

    def loss(self) -> float | None:
        return 2.5

    def step_time_s(self) -> float | None:
        return 0.1


def test_a_job_nobody_submitted_is_pending_and_everything_else_unknown() -> None:
    told = status_of(state(), None, 5.0)
    assert (told.round, told.step, told.loss, told.world_size, told.now) == (None, None, None, 0, 5.0)
    assert told.members == Membership(wanted=0, ready=0, spares=0, joined=0)


@pytest.mark.parametrize(
    ("desired", "world"),
    [(ROUND, 2), (Idle(JOB, 4, "backing off"), 0), (None, 0)],
    ids=["running", "idle", "nothing"],
)
def test_the_world_is_what_is_to_run_now(desired: Round | Idle | None, world: int) -> None:
    told = status_of(state(round=ROUND, desired=desired), None, 5.0)
    assert (told.round, told.world_size) == (3, world)


@pytest.mark.parametrize(("seen", "decided", "step"), [(9, 7, 9), (None, 7, 7), (None, None, None), (7, 9, 9)])
def test_the_step_seen_is_newer_than_the_one_journaled(
    seen: int | None, decided: int | None, step: int | None
) -> None:
    assert status_of(state(step=decided), FixedGauge(seen), 5.0).step == step


@pytest.mark.parametrize(
    ("formed", "names", "lost", "expected"),
    [
        (ROUND, ("m1", "m2"), (), (1, 1)),
        (ROUND, ("m2",), ("m1",), (0, 1)),
        (None, ("m1", "m2", "m3"), (), (2, 1)),
        (None, ("m1",), ("m2",), (1, 0)),
    ],
    ids=["one seated, one spare", "the seated one lost", "before the first round", "one lost before it"],
)
def test_members_are_ready_or_spare_or_lost(
    formed: Round | None, names: tuple[str, ...], lost: tuple[str, ...], expected: tuple[int, int]
) -> None:
    members = Roster.of(*(member(name) for name in names), *(member(name, MemberState.LOST) for name in lost))
    told = status_of(state(policy=Policy(JOB, 1, 2), round=formed, members=members), None, 5.0)
    assert told.members == Membership(2, *expected, joined=expected[0])


def test_the_newest_checkpoint_is_told() -> None:
    checkpoints = (Checkpoint(1, "a", 1, 0.0), Checkpoint(2, "b", 1, 1.0))
    assert status_of(state(checkpoints=checkpoints), None, 5.0).last_checkpoint == checkpoints[1]


def test_a_job_that_is_over_shows_the_last_step_its_launchers_told_of() -> None:
    over = state(step=300, desired=Closed("research/gpt", 9, succeeded=True, reason="done"))
    assert status_of(over, FixedGauge(294), 5.0).step == 300


def on_trial(name: str) -> dict[str, Trial]:
    return {name: Trial(name, 1, TestLevel.LIGHT, "test", at=0.0, bars=True)}


def test_a_spare_that_is_tested_takes_nothing_from_those_with_ranks() -> None:
    roster = Roster.of(member("m1"), member("m2", MemberState.TESTING))
    policy = Policy(JOB, 1, 1, spares=1, processes_per_node=2)
    found = status_of(state(policy=policy, round=ROUND, members=roster, trials=on_trial("m2")), None, 0.0)
    assert found.members == Membership(wanted=1, ready=1, spares=0, joined=1)


def test_one_that_is_unknown_and_to_be_tested_is_away_once() -> None:
    roster = Roster.of(member("m1", MemberState.UNKNOWN))
    policy = Policy(JOB, 1, 1, processes_per_node=2)
    found = status_of(state(policy=policy, members=roster, trials=on_trial("m1")), None, 0.0)
    assert found.members == Membership(wanted=1, ready=0, spares=0, joined=0)


def test_nobody_is_ready_in_a_job_that_is_over() -> None:
    roster = Roster.of(member("m1"), member("m2"))
    policy = Policy(JOB, 1, 2, processes_per_node=2)
    found = status_of(state(policy=policy, round=ROUND, members=roster, ended_at=4.0), None, 5.0)
    assert found.members == Membership(wanted=2, ready=0, spares=0, joined=0)


def test_a_job_that_is_only_observed_says_so() -> None:
    policy = Policy(JOB, 1, 2, processes_per_node=2)
    assert not status_of(state(policy=policy), None, 0.0).observed
    assert status_of(state(policy=msgspec.structs.replace(policy, observe=True)), None, 0.0).observed


def test_the_age_of_the_newest_step_is_told_only_of_a_job_that_trains() -> None:
    ledger = Ledger(stepped_at=3.0)
    assert status_of(state(phase=JobPhase.RUNNING, ledger=ledger), None, 5.0).step_age_s == 2.0
    assert status_of(state(phase=JobPhase.RUNNING), None, 5.0).step_age_s is None
    assert status_of(state(phase=JobPhase.RECOVERING, ledger=ledger), None, 5.0).step_age_s is None


@pytest.mark.parametrize(
    ("age_s", "phase"), [(59.0, JobPhase.RUNNING), (61.0, JobPhase.STALLED)], ids=["a slow step", "no step"]
)
def test_a_job_of_which_no_step_is_seen_is_not_shown_as_running(age_s: float, phase: JobPhase) -> None:
    runs = state(phase=JobPhase.RUNNING, reason="training in round 3", ledger=Ledger(stepped_at=100.0))
    told = status_of(runs, FixedGauge(7), 100.0 + age_s)
    assert told.phase is phase
    assert told.reason == ("no step is seen; " if phase is JobPhase.STALLED else "") + "training in round 3"


@pytest.mark.parametrize(
    ("age_s", "members", "ettr"),
    [(59.0, Membership(2, 1, 1, joined=1), 0.9), (61.0, Membership(2, 0, 1, joined=1), None)],
    ids=["a slow step", "no step"],
)
def test_of_a_job_of_which_no_step_is_seen_nobody_is_ready_and_nobody_knows_the_ettr(
    age_s: float, members: Membership, ettr: float | None
) -> None:
    runs = state(
        phase=JobPhase.RUNNING,
        policy=Policy(JOB, 1, 2),
        round=ROUND,
        members=Roster.of(member("m1"), member("m2")),
        ledger=LedgerOfBefore(began_at=0.0, useful_s=90.0, stepped_at=100.0).carried(),
        publishes=True,
    )
    told = status_of(runs, FixedGauge(7), 100.0 + age_s)
    assert (told.members, told.ettr) == (members, ettr)
    assert told.members.there == 1


def test_a_job_whose_steps_take_minutes_is_running_meanwhile() -> None:
    runs = state(phase=JobPhase.RUNNING, ledger=Ledger(stepped_at=0.0))
    assert shown_phase(runs, 120.0, 1199.0) is JobPhase.RUNNING
    assert shown_phase(runs, 120.0, 1201.0) is JobPhase.STALLED


def test_a_script_that_publishes_no_steps_is_running_as_far_as_anybody_can_see() -> None:
    assert shown_phase(state(phase=JobPhase.RUNNING), None, 1e6) is JobPhase.RUNNING
