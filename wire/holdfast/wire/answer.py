"""What a watchdog's answer means to a client: another one leads, or this one refuses.

The service in front of all replicas leads to standbys as well. A standby refuses what only a leader can answer,
and says so in a header. That is no fault, and nothing is overloaded: whoever meets one asks again at once, over a
new connection.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import HoldfastError, InvalidInput, Malformed, Problem, Unavailable
from holdfast.api.standing import STANDBY_STATUS, STANDING_HEADER, Standing

# With two replicas six tries in a row miss the leader once in sixty-four times.
QUICK_TRIES: Final = 6
QUICK_S: Final = 0.05
# While nobody leads, everybody meets standbys. Then thousands ask, and this is how often each of them does.
SLOW_S: Final = 0.4
# For those who give up in the end: a little longer than a leader that died is missed for (3 s by default).
TRIES_MAX: Final = 18
ONLY_STANDBYS: Final = "no watchdog leads; those that answer stand by"
TEXT_LENGTH_MAX: Final = 500


def is_standby(status: int, headers: Mapping[str, str] | None) -> bool:
    """Whether an answer says: ask again, another one leads. `headers` take names in any case."""
    return status == STANDBY_STATUS and (headers or {}).get(STANDING_HEADER) == Standing.STANDBY


def ask_again_after_s(standbys_met: int, jitter: float) -> float:
    """How long to wait after meeting that many standbys in a row; `jitter` in [0, 1) keeps clients apart."""
    longest_s = min(SLOW_S, QUICK_S * 2.0 ** max(0, min(standbys_met - QUICK_TRIES, 16)))
    return longest_s * (0.5 + 0.5 * jitter)


class LeaderSearch:
    """The standbys that one client has met in a row."""

    def __init__(self) -> None:
        self._met = 0

    def after_s(self, status: int, headers: Mapping[str, str] | None, jitter: float) -> float | None:
        """How long to wait after this refusal, None when it is not a standby's: the client's own rules hold."""
        if not is_standby(status, headers):
            self._met = 0
            return None
        self._met += 1
        return ask_again_after_s(self._met, jitter)

    @property
    def in_vain(self) -> bool:
        """Whether this has gone on for longer than a change of leader takes: something to tell of."""
        return self._met >= TRIES_MAX

    def found(self) -> None:
        """A leader was met."""
        self._met = 0


class Answered(Protocol):
    """An answer's head. `headers` take names in any case."""

    @property
    def headers(self) -> Mapping[str, str]: ...


Given = TypeVar("Given", bound=Answered)


def from_leader(ask: Callable[[], Given]) -> Given:
    """The leader's answer; a standby's when no leader is met in about the time that a change of leader takes.

    Every answer of a standby counts as one, also to what it does answer, such as its health. Sleeps in between.
    """
    given = ask()
    for standbys_met in range(1, TRIES_MAX):
        if given.headers.get(STANDING_HEADER) != Standing.STANDBY:
            break
        time.sleep(ask_again_after_s(standbys_met, random.random()))
        given = ask()
    return given


class Explanation(msgspec.Struct):
    """How the watchdog words a refusal."""

    error: str = ""


def explanation(content: bytes) -> str:
    """The sentence in a refusal's body, empty when there is none."""
    try:
        return decode_json(content, Explanation).error
    except Malformed:
        return ""


def refusal(status: int, content: bytes, subject: str, token_of: str) -> HoldfastError:
    """The error a watchdog's refusal is. `subject` is what was asked about, `token_of` whose token was shown.

    Not being let in is a matter of the installation, which changes (Unavailable); a request that was refused for
    what it says never gets better (InvalidInput).
    """
    said = explanation(content)
    if status in (401, 403):
        return Unavailable(f"the watchdog refused the token of {token_of}: {said or status}")
    if status == 404:
        return InvalidInput(Problem("job", subject, said or "the watchdog does not know it"))
    said = said or content[:TEXT_LENGTH_MAX].decode("utf-8", "replace").strip()
    if status < 500 and status not in (408, 429):
        return InvalidInput(Problem("request", subject, said or f"the watchdog answered {status}"))
    return Unavailable(f"the watchdog answered {status}: {said or 'no reason given'}")
