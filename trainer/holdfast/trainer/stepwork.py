"""What this rank's steps are made of: sums that the rank record publishes, taken without waiting for anything.

In synchronous training all ranks take equally long for a step; who is slow is who waits least. So what counts is
what a rank did itself. The time of a step is split by the phases that the loop tells of. Of the phases in which it
trains, the kernel's scheduler says how long the training thread ran and how long it was ready to run without a
processor; in what is left it waited. A collective on the CPU sleeps until the others are there. On a GPU the
host's thread sleeps and spins for reasons of its own: there the wait is Unknown.

Source: https://docs.kernel.org/scheduler/sched-stats.html (/proc/<pid>/schedstat: time on the processor, time on a
run queue, in nanoseconds)
"""

import gc
import os
import threading
import time
from typing import Final

from holdfast.api.rankrecord import UNKNOWN_INT, Phase

_OWN: Final = Phase.OWN
_TRAINS: Final = tuple(phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OWN) for phase in Phase)
_ENOUGH: Final = 64  # bytes for three numbers
PUBLISHED_EVERY_NS: Final = 50_000_000
"""Of shorter steps several are published at once: whoever reads them looks ten times a second."""


class ThreadTimes:
    """How long the thread that makes this has run and has been ready to run, as the kernel counts."""

    def __init__(self) -> None:
        """Where the kernel keeps no such count, `delayed_ns` knows nothing."""
        self.thread = threading.get_native_id()
        try:
            self._file = os.open(f"/proc/self/task/{self.thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    ran_ns = staticmethod(time.thread_time_ns)
    """Of the calling thread. It costs a fifth of what the file costs."""

    def delayed_ns(self) -> int | None:
        """None: Unknown."""
        return None if self._file < 0 else int(os.pread(self._file, _ENOUGH, 0).split()[1])

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class CollectorClock:
    """How long Python's garbage collector has kept this process from running: it holds all threads."""

    def __init__(self) -> None:
        self.total_ns = 0
        self._began_ns = 0

    def told(self, what: str, _: object) -> None:
        """What `gc.callbacks` are called with."""
        if what == "start":
            self._began_ns = time.perf_counter_ns()
        elif self._began_ns:
            self.total_ns += time.perf_counter_ns() - self._began_ns
            self._began_ns = 0


_collector = CollectorClock()


def follow_collector() -> CollectorClock:
    """The clock of this process, which runs from the first call on."""
    if _collector.told not in gc.callbacks:
        gc.callbacks.append(_collector.told)
    return _collector


class StepWork:
    """The sums of one round, as in the record's work zone. Belongs to the training thread; times are
    CLOCK_MONOTONIC in nanoseconds.

    A loop that tells of no phase between two steps trained all the time: how long it waited for data is not known,
    and counted as training. What lies behind a step, until a phase is told of, is the script's own: of it counts
    what the thread ran, for whom it waited there it does not say.
    """

    def __init__(self, times: ThreadTimes | None, now_ns: int) -> None:
        """`times` None: what the host's thread waits for says nothing."""
        self._times = times
        self._ran_ns = _no_time if times is None else times.ran_ns
        self._collector = follow_collector()
        self._phase: int = Phase.STARTUP
        self._is_told = True  # whether the loop has told of a phase since the step before
        self._steps = UNKNOWN_INT  # 0 once the first has ended
        self._clear(now_ns)

    def _clear(self, now_ns: int) -> None:
        self._began_ns = self._since_ns = self._marked_ns = now_ns
        self._spent = [0] * len(Phase)
        self._collected_from_ns = self._collector.total_ns
        self._tokens = self._longest = 0
        self._idle_ns = 0  # of the training thread, while it trained: it waited or was delayed
        self._waited_ns = 0  # as told last
        self._own_ns = 0
        self._ran_before_ns = self._own_from_ns = self._ran_ns()
        self._delayed_before_ns = None if self._times is None else self._times.delayed_ns()

    def phase(self, phase: int, now_ns: int) -> None:
        """`phase` begins."""
        before = self._phase
        self._spent[before] += now_ns - self._since_ns
        if before == _OWN or _TRAINS[before] != _TRAINS[phase]:
            ran_ns = self._ran_ns()
            if before == _OWN:
                self._own_ends(now_ns, ran_ns)
            if _TRAINS[before] != _TRAINS[phase]:
                self._mark(now_ns, ran_ns, trained=_TRAINS[before])
        self._phase, self._since_ns, self._is_told = phase, now_ns, True

    def step(self, now_ns: int, tokens: int, longest: int) -> None:
        """A step is complete."""
        phase = self._phase if self._is_told else Phase.FORWARD
        self._spent[phase] += now_ns - self._since_ns
        if self._is_told:
            ran_ns = self._ran_ns()
            if phase == _OWN:
                self._own_ends(now_ns, ran_ns)
            if not _TRAINS[phase]:
                self._mark(now_ns, ran_ns, trained=False)
            self._own_from_ns = ran_ns
        else:
            # Of a loop that tells of no phase, as a rule: the reading, most of what a step costs, is left out.
            self._own_from_ns = self._ran_before_ns
        self._phase, self._since_ns, self._is_told = _OWN, now_ns, False
        self._steps += 1
        if self._steps == 0:
            self._clear(now_ns)
        else:
            self._tokens = UNKNOWN_INT if tokens < 0 or self._tokens < 0 else self._tokens + tokens
            self._longest = UNKNOWN_INT if longest < 0 or self._longest < 0 else self._longest + longest

    def _own_ends(self, now_ns: int, ran_ns: int) -> None:
        """What it ran there; all of it where the host's thread says nothing."""
        took_ns = now_ns - self._since_ns
        self._own_ns += took_ns if self._times is None else min(took_ns, ran_ns - self._own_from_ns)

    def _mark(self, now_ns: int, ran_ns: int, *, trained: bool) -> None:
        if trained:
            self._idle_ns += now_ns - self._marked_ns - (ran_ns - self._ran_before_ns)
        self._marked_ns, self._ran_before_ns = now_ns, ran_ns

    def fields(self) -> tuple[int, ...]:
        """The work zone's, from `steps` on, up to the newest step. To be asked at a step's end."""
        if _TRAINS[self._phase]:
            self._mark(self._since_ns, self._ran_ns(), trained=True)
        waited = delayed = UNKNOWN_INT
        if self._times is not None and self._delayed_before_ns is not None:
            delayed_now = self._times.delayed_ns()
            if delayed_now is not None:
                delayed = delayed_now - self._delayed_before_ns
                # It is delayed while it trains and while it does not: the wait never becomes less for that.
                waited = self._waited_ns = max(self._waited_ns, self._idle_ns - delayed)
        spent = self._spent
        return (
            max(0, self._steps),
            self._since_ns - self._began_ns,
            spent[Phase.DATA],
            spent[Phase.CHECKPOINT],
            spent[Phase.IDLE] + spent[Phase.STARTUP],
            waited,
            delayed,
            self._collector.total_ns - self._collected_from_ns,
            self._tokens,
            self._longest,
            self._own_ns,
        )


def _no_time() -> int:
    return 0
