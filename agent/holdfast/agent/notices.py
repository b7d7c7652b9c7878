"""Notices that the machine is taken away, kept for jobs that come after they were given."""

from collections.abc import Iterable

import msgspec

from holdfast.agent.sensors.sensor import Reading
from holdfast.api.telemetry import NodeEvent, PreemptionNoticed


class StandingNotices:
    """A notice stands until its time is up; every job on the node is told of it once."""

    def __init__(self) -> None:
        self._given: list[tuple[float, PreemptionNoticed]] = []  # when, on the agent's clock
        self._told: set[str] = set()

    def observe(self, events: Iterable[NodeEvent], now: float) -> None:
        """Take in what was sensed at `now`."""
        new = [(now - each.age_s, each) for each in events if isinstance(each, PreemptionNoticed)]
        self._given = [(at, each) for at, each in (*self._given, *new) if now < at + each.within_s]

    def for_newcomers(self, jobs: Iterable[str], now: float) -> dict[str, Reading]:
        """What jobs that were not here at the last look are to be told, by job. Called before `observe`."""
        here = set(jobs)
        newcomers, self._told = here - self._told, here
        if not newcomers or not self._given:
            return {}
        events = tuple(msgspec.structs.replace(each, age_s=now - at) for at, each in self._given)
        return {job: Reading(events=events) for job in newcomers}
