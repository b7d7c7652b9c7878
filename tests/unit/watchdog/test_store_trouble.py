"""Whether decisions can be recorded, from the first moment on."""

import pytest

from holdfast.api.policy import Policy
from holdfast.api.standing import Standing
from holdfast.watchdog import brain
from holdfast.watchdog.progress import Progress
from holdfast.watchdog.senses import Senses
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.store.memory import MemoryStore


def senses_for(policy: Policy) -> Senses:
    return Senses((), Progress(policy))


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog(MemoryStore(), brain=brain, senses_for=senses_for, fenced=lambda _: None)


def test_before_the_store_was_asked_nothing_says_that_it_answers(watchdog: Watchdog) -> None:
    assert (watchdog.standing, watchdog.trouble()) == (Standing.STARTING, "the store has not been asked yet")


def test_a_standby_tells_what_came_of_asking(watchdog: Watchdog) -> None:
    watchdog.note_store("connection refused")
    assert (watchdog.standing, watchdog.trouble()) == (Standing.STANDBY, "connection refused")
    watchdog.note_store(None)
    assert (watchdog.standing, watchdog.trouble()) == (Standing.STANDBY, None)


def test_who_leads_has_asked(watchdog: Watchdog) -> None:
    watchdog.start()
    assert (watchdog.standing, watchdog.trouble()) == (Standing.LEADING, None)
