"""Asks again while it is a standby that answers: a service in front of the watchdogs leads to any of them."""

import random
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from holdfast.api.standing import STANDING_HEADER, TRIES_MAX, Standing, ask_again_after_s


class Answered(Protocol):
    """An answer's head. `headers` take names in any case."""

    @property
    def headers(self) -> Mapping[str, str]: ...


Given = TypeVar("Given", bound=Answered)


def from_leader(ask: Callable[[], Given]) -> Given:
    """The leader's answer; a standby's when no leader is met in about the time that a change of leader takes.

    Every answer of a standby counts as one, also to what it does answer, such as its health.
    """
    given = ask()
    for standbys_met in range(1, TRIES_MAX):
        if given.headers.get(STANDING_HEADER) != Standing.STANDBY:
            break
        time.sleep(ask_again_after_s(standbys_met, random.random()))
        given = ask()
    return given
