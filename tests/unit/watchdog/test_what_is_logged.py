"""What an on-call engineer reads of decisions in the watchdog's log."""

import logging

import pytest

from holdfast.api.event import (
    ClockTicked,
    Event,
    InterventionRequested,
    JobSubmitted,
    MemberEntered,
    MemberJoined,
    RoundProgressed,
)
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.policy import Policy
from holdfast.api.selftest import TestLevel
from holdfast.watchdog import brain
from holdfast.watchdog.job import Job
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.store.memory import MemoryStore

JOB = "research/gpt"


class Told:
    """A job of one member, told event by event, and what it logs."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "holdfast.watchdog.job")
        self._caplog = caplog
        self.now = 1000.0
        store = MemoryStore()
        self.job = Job(JOB, store=store, fence=store.claim(), brain=brain, senses_for=senses_for)

    def tell(self, *events: Event) -> list[str]:
        """What is logged because of them."""
        self._caplog.clear()
        for event in events:
            self.job.record(event, self.now)
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
