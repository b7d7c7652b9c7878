"""What an intervention was answered stands: asked again later, after any death of the watchdog, it is the same."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from forgetful_store import MemoryStore

from holdfast.api.event import JobSubmitted, MemberJoined, MemberLeft
from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.policy import Policy
from holdfast.watchdog import brain
from holdfast.watchdog.journal.replay import Verdict, replay
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.watchdog import Watchdog

JOB = "research/gpt"
WRITES = ("append", "save", "file", "note_answer", "harden")
ACTIONS = (
    (InterventionAction.PAUSE, {}),
    (InterventionAction.RESUME, {}),
    (InterventionAction.RESIZE, {"nodes": 1}),
    (InterventionAction.EVICT, {"node": "n1"}),
    (InterventionAction.RETURN, {"node": "n1"}),
    (InterventionAction.CHECKPOINT, {}),
    (InterventionAction.REWIND, {"to_step": 10}),
)


class Killed(BaseException):
    """The process ended here: nothing it does from now on reaches the store."""


class MortalStore(MemoryStore):
    """Ends its process before or after the write it is told to; everything before that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left: int | None = None
        self.after = False
        self.dead = False

    def revive(self) -> None:
        self.writes_left, self.dead = None, False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return self._mortal(found) if name in WRITES else found

    def _mortal(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any, **named: Any) -> Any:
            if self.dead:
                raise Killed
            if self.writes_left is None:
                return write(*given, **named)
            self.writes_left -= 1
            if self.writes_left > 0:
                return write(*given, **named)
            self.dead = True
            if self.after:
                write(*given, **named)
            raise Killed

        return act


def started(store: MemoryStore) -> tuple[Watchdog, JobHost]:
    watchdog = Watchdog(store, brain=brain, senses_for=senses_for, fenced=pytest.fail)
    watchdog.start()
    return watchdog, watchdog.host(JOB)


def end(watchdog: Watchdog) -> None:
    """As a killed process ends: no timer, no snapshot, no word."""
    for host in watchdog.hosts():
        host.closing = host._over = True
        if host._timer is not None:
            host._timer.cancel()


def joined(number: int) -> MemberJoined:
    return MemberJoined(f"m{number}", f"n{number}", f"b{number}", "127.0.0.1", 1, (4000,), warm=True)


def submit(host: JobHost) -> None:
    host.record(JobSubmitted(Policy(JOB, 1, 3)))
    for number in range(3):
        host.record(joined(number))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.watchdog.server.interventions.ANSWER_PATIENCE_S", 0.0)


def requests(dice: random.Random, count: int) -> list[InterventionRequest]:
    made = []
    for number in range(count):
        action, fields = dice.choice(ACTIONS)
        made.append(InterventionRequest(f"i{number}", JOB, action, "on call", **fields))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("seed", range(8))
async def test_an_answer_once_given_stands_through_deaths_at_random_writes(seed: int) -> None:
    dice, store = random.Random(seed), MortalStore()
    watchdog, host = started(store)
    submit(host)
    given: dict[str, tuple[InterventionRequest, InterventionOutcome]] = {}
    for number, request in enumerate(requests(dice, 120)):
        if dice.random() < 0.2:
            store.writes_left, store.after = dice.randrange(1, 4), dice.random() < 0.5
        try:
            outcome = await host.interventions.ask(request)
            if outcome.state is not InterventionState.PENDING:
                given[request.id] = (request, outcome)
            if dice.random() < 0.3:
                host.record(MemberLeft(f"m{number % 3}", "test"))
                host.record(joined(number % 3))
        except Killed:
            pass
        if store.dead:
            end(watchdog)
            store.revive()
            watchdog, host = started(store)
    assert len(given) > 70  # more than the state itself remembers
    for request, outcome in given.values():
        assert await host.interventions.ask(request) == outcome
    watchdog.stop()
    assert replay(store, JOB, brain=brain).verdict is Verdict.EQUAL


async def test_an_answer_that_the_state_has_forgotten_is_not_done_again() -> None:
    watchdog, host = started(MemoryStore())
    submit(host)
    first = InterventionRequest("first", JOB, InterventionAction.PAUSE, "on call")
    answered = await host.interventions.ask(first)
    for request in requests(random.Random(1), 400):
        await host.interventions.ask(request)
    lines = host.job.offset
    assert await host.interventions.ask(first) == answered
    assert host.job.offset == lines
    watchdog.stop()
