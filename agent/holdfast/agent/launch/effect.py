"""What the set of local workers wants done, and how it is told that a process ended."""

from dataclasses import dataclass

from holdfast.api.control import ToWorker
from holdfast.api.membership import FromLauncher
from holdfast.api.round import Seat
from holdfast.api.selftest import TestWanted


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process for `rank` of `round`; answer with `started` or `not_started` under `ticket`.

    `restarts` counts the rounds this launcher ran before.
    """

    ticket: int
    local_rank: int
    rank: int
    round: Seat
    restarts: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """SIGKILL the process and its group; answer with `exited`."""

    pid: int


@dataclass(frozen=True, slots=True)
class TellWorker:
    """Send over the worker's control connection."""

    pid: int
    message: ToWorker


@dataclass(frozen=True, slots=True)
class StartTest:
    """Start a process that does the self-test `request` asks for."""

    ticket: int
    request: TestWanted


@dataclass(frozen=True, slots=True)
class Report:
    """Send to the watchdog."""

    message: FromLauncher


Effect = Start | StartTest | KillWorker | TellWorker | Report


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. Exactly one of `exit_code` and `signal` is set.

    `completed` is the round it last completed a step in, and that step; None when Unknown. `error`, `raised`,
    `place` and `own_limit` are as in `WorkerExited`.
    """

    exit_code: int | None
    signal: int | None
    age_s: float = 0.0
    error: str = ""
    completed: tuple[int, int] | None = None
    raised: str = ""
    place: str = ""
    own_limit: bool = False
