"""Where one station stands, and what is to be said of it when it hangs or dies. Pure."""

from collections.abc import Sequence

from holdfast.agent.selftest.station import START, Began, Done, FromStation, Identified, Pulse
from holdfast.api.selftest import CheckResult, Verdict


class Progress:
    """One station's checks, from the first to the last. Times are seconds on the supervisor's monotonic clock."""

    def __init__(self, device: str, checks: Sequence[str], *, limit_s: float, now: float) -> None:
        """`limit_s` is how long it may say nothing: one run of a check, or reaching the device."""
        self._device = device
        self._to_come = list(checks)
        self._limit_s = limit_s
        self._running: str | None = START
        self._since = now
        self._results: list[CheckResult] = []

    @property
    def results(self) -> tuple[CheckResult, ...]:
        return tuple(self._results)

    @property
    def is_complete(self) -> bool:
        return self._running is None and not self._to_come

    @property
    def deadline(self) -> float:
        """When it is late unless it has said something by then."""
        return self._since + self._limit_s

    def take(self, message: FromStation, now: float) -> None:
        """The station said something."""
        self._since = now
        if isinstance(message, Identified):
            self._device, self._running = message.device, None
        elif isinstance(message, Began):
            self._to_come.remove(message.check)
            self._running = message.check
        elif not isinstance(message, Pulse):
            self._running = None
            if isinstance(message, Done):
                self._results.append(message.result)

    def hung(self, now: float) -> None:
        """It was killed for being late: what hung has failed, what was to follow is Unknown."""
        late = self._running or START
        says = f"did not return within {self._limit_s:.0f} s"
        self._end(Verdict.FAILED, says, f"not run: {late} did not return before", now)

    def stopped(self, why: str, now: float) -> None:
        """It ended, or was ended, before it was done, which proves nothing."""
        self._end(Verdict.UNKNOWN, why, f"not run: {why}", now)

    def _end(self, verdict: Verdict, running_says: str, others_say: str, now: float) -> None:
        if self._running is not None:
            took_s = round(now - self._since, 4)
            self._results.append(CheckResult(self._running, self._device, verdict, running_says, took_s))
        self._results += [
            CheckResult(name, self._device, Verdict.UNKNOWN, others_say, 0.0) for name in self._to_come
        ]
        self._running, self._to_come = None, []
