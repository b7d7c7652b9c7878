"""What an on-call engineer reads of decisions in the watchdog's log."""

import logging

import pytest
from forgetful_store import MemoryStore

from holdfast.api.event import (
    ClockTicked,
    Event,
    FindingMade,
    InterventionRequested,
    JobSubmitted,
    MemberEntered,
    MemberJoined,
    RoundProgressed,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.policy import Policy
from holdfast.api.selftest import TestLevel
from holdfast.watchdog import brain
from holdfast.watchdog.decisionlog import IGNORED_KEPT
from holdfast.watchdog.job import Job
from holdfast.watchdog.senses import senses_for

JOB = "research/gpt"


class Told:
    """A job of one member, told event by event, and what it logs."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "holdfast.watchdog.decisionlog")
        self._caplog = caplog
        self.now = 1000.0
        self._store = MemoryStore()
        self.job = self._job()

    def _job(self) -> Job:
        return Job(JOB, store=self._store, fence=self._store.claim(), brain=brain, senses_for=senses_for)

    def begun_again(self) -> Job:
        """The job as the next watchdog takes it up."""
        self._caplog.clear()
        again = self._job()
        again.restore()
        return again

    def tell(self, *events: Event) -> list[str]:
        """What is logged because of them."""
        self._caplog.clear()
        for event in events:
            self.job.record(event, self.now)
        return self.logged()

    def logged(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]

    @property
    def round(self) -> int:
        assert self.job.state.round is not None
        return self.job.state.round.number

    def trains(self) -> int:
        """The number of the round that makes its first step."""
        join = MemberJoined("m1", "n1", "b", "127.0.0.1", 1, (4000, 4001), warm=True)
        self.tell(JobSubmitted(Policy(JOB, 1, 1)), join)
        self.tell(MemberEntered("m1", self.round, reentrant=True), RoundProgressed(self.round, 1))
        return self.round


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


def test_a_test_that_never_had_its_turn_is_told_of_when_it_is_given_up(told: Told) -> None:
    told.tell(JobSubmitted(Policy(JOB, 1, 1)), MemberJoined("m1", "n1", "b", "127.0.0.1", 1, (4000,), warm=True))
    request = InterventionRequest("i-1", JOB, InterventionAction.TEST, "slow", node="n1", level=TestLevel.FULL)
    told.tell(InterventionRequested(request))
    told.now += 3600.0
    (line,) = told.tell(ClockTicked())
    assert f"m1 waited for round {told.round} to train for 3600 s (full self-test); 1 taken untested" in line


def found(node: str, cause: str, *, kind: FindingKind = FindingKind.XID, round_: int | None = None) -> FindingMade:
    evidence = (Evidence("test", cause, 1000.0),)
    subject = Subject(JOB, node=node, member="m1", rank=0)
    return FindingMade(Finding(kind, subject, cause, evidence, Confidence.CERTAIN, 1000.0, round=round_))


def test_a_finding_that_is_ignored_is_told_once_until_the_reason_is_another_one(told: Told) -> None:
    exited = found("n1", "signal 9", kind=FindingKind.PROCESS_EXIT, round_=7)
    assert told.tell(exited, exited) == [
        "finding ignored job=research/gpt offset=1 kind=ProcessExit cause=signal 9 subject=node n1 rank 0 "
        "reason=the job is not submitted yet"
    ]
    told.trains()
    (line,) = told.tell(exited, exited)
    assert line.endswith("subject=node n1 rank 0 reason=round 7 is over")
    (of_another,) = told.tell(found("n1", "signal 11", kind=FindingKind.PROCESS_EXIT, round_=7))
    assert "cause=signal 11" in of_another


def test_a_finding_that_something_was_done_about_meanwhile_is_told_anew_when_it_is_ignored(told: Told) -> None:
    number = told.trains()
    late = found("n1", "signal 9", kind=FindingKind.PROCESS_EXIT, round_=number + 99)
    assert len(told.tell(late)) == 1
    (decided,) = told.tell(found("n1", "signal 9", kind=FindingKind.PROCESS_EXIT, round_=number))
    assert decided.startswith("decided job=research/gpt")
    assert told.tell(late, late)[0].startswith("finding ignored")


def test_what_is_remembered_of_ignored_findings_is_bounded(told: Told) -> None:
    first = found("n-first", "xid 79")
    told.tell(first)
    many = [found(f"n{number}", "xid 79") for number in range(IGNORED_KEPT)]
    assert len(told.tell(*many)) == IGNORED_KEPT
    assert told.tell(many[-1]) == []
    assert len(told.tell(first)) == 1, "the oldest is forgotten, and told again"


def test_a_restart_tells_nothing_of_what_was_ignored_before(told: Told) -> None:
    told.tell(found("n1", "xid 79"))
    again = told.begun_again()
    assert told.logged() == []
    again.record(found("n1", "xid 79"), told.now)
    assert len(told.logged()) == 1
