"""The self-test of a member: decides when one runs, and what is answered.

Pure: no I/O and no clock, as `localset.py`. A test waits until no worker uses the devices, and training goes
first: a round that needs the member ends its test at once, without a verdict.

    wanted     workers hold the devices   ->  waits; a newer request takes its place
    wanted     nobody does                ->  started
    running    a round wants the member   ->  killed, answered Unknown; workers wait until its processes are gone
    ended                                 ->  answered; the same request again gets the same answer
"""

import itertools
from dataclasses import dataclass
from typing import Final

from holdfast.agent.launch.localset import Effect, KillWorker, Report, Start, StartTest
from holdfast.api.selftest import Tested, TestWanted, Verdict

HELD_S: Final = 5.0
"""How long a worker waits for a test to be gone: it may hold most of a GPU's memory. One stuck in the driver may
never end, and then the worker's own error says what is wrong."""


@dataclass(slots=True)
class _Run:
    """One process that tests. `pid` is None until it is known; `dropped` when nobody waits for its answer."""

    request: TestWanted
    ticket: int
    pid: int | None = None
    dropped: bool = False


class Testing:
    """The tests of one member, at most one at a time."""

    __test__ = False  # not a test of pytest's

    def __init__(self) -> None:
        self._waiting: TestWanted | None = None
        self._run: _Run | None = None
        self._answer: tuple[TestWanted, Tested] | None = None
        self._tickets = itertools.count(-1, -1)  # those of workers are positive
        self._fading: int | None = None  # a test that has ended, while processes of its own may still be ending
        self._held: list[Start] = []
        self._held_until: float | None = None

    def want(self, request: TestWanted) -> list[Effect]:
        """The watchdog asks. `settle` then says whether it can begin.

        A watchdog that forgot everything numbers anew: a request is the same when all of it is.
        """
        if self._answer is not None and self._answer[0] == request:
            return [Report(self._answer[1])]
        if self._run is not None and not self._run.dropped and self._run.request == request:
            return []
        self._waiting = request
        return self._drop()

    def settle(self, *, free: bool, round_: int | None) -> list[Effect]:
        """Workers came or went: `free` when none uses the devices, `round_` when one gives this member ranks."""
        if round_ is not None and self._run is not None and not self._run.dropped:
            request = self._run.request
            return [*self._drop(), self._answered(request, f"interrupted by round {round_}")]
        if not free or self._waiting is None or self._run is not None:
            return []
        request, self._waiting = self._waiting, None
        self._run = _Run(request, next(self._tickets))
        return [StartTest(self._run.ticket, request)]

    def hold(self, start: Start, now: float) -> bool:
        """Whether this worker has to wait until a test is gone. Then it comes as an effect."""
        is_gone = self._run is None and self._fading is None
        if is_gone or (self._held_until is not None and now >= self._held_until):
            return False
        if self._held_until is None:
            self._held_until = now + HELD_S
        self._held.append(start)
        return True

    def next_wakeup(self) -> float | None:
        """When `elapse` has something to find, on the clock of the `now` arguments."""
        return self._held_until if self._held else None

    def elapse(self, now: float) -> list[Effect]:
        """Let workers wait no longer than `HELD_S`."""
        return self._released() if self._held_until is not None and now >= self._held_until else []

    def has_ticket(self, ticket: int) -> bool:
        return self._run is not None and self._run.ticket == ticket

    def has_process(self, pid: int) -> bool:
        return self._run is not None and self._run.pid == pid

    def started(self, pid: int) -> list[Effect]:
        """The process that was asked for is there."""
        assert self._run is not None
        self._run.pid = pid
        return [KillWorker(pid)] if self._run.dropped else []

    def ended(self, result: Tested | str) -> list[Effect]:
        """The process is gone, or never came: its answer, or why there is none."""
        assert self._run is not None
        run, self._run = self._run, None
        self._fading = run.pid
        answer = [] if run.dropped else [self._answered(run.request, result)]
        return [*answer, *self._released_if_gone()]

    def group_gone(self, pid: int) -> list[Effect]:
        """Nothing is left of a process that has ended, nor of those that it started."""
        if pid != self._fading:
            return []
        self._fading = None
        return self._released_if_gone()

    def _released_if_gone(self) -> list[Effect]:
        if self._run is not None or self._fading is not None:
            return []
        self._held_until = None
        return self._released()

    def _released(self) -> list[Effect]:
        held, self._held = self._held, []
        return [*held]

    def _drop(self) -> list[Effect]:
        if self._run is None or self._run.dropped:
            return []
        self._run.dropped = True
        return [KillWorker(self._run.pid)] if self._run.pid is not None else []

    def _answered(self, request: TestWanted, result: Tested | str) -> Effect:
        """Answer with what was found out, or why nothing was."""
        if isinstance(result, str):
            result = Tested(request.number, request.level, Verdict.UNKNOWN, 0.0, says=result)
        self._answer = request, result
        return Report(result)
