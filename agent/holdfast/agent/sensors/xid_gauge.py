"""XID errors out of what an exporter shows of them. Pure.

The gauge holds the last error for good, so only a change of it is an event; what it shows at the first look
happened nobody knows when, and is none. Totals by XID tell repetitions too. Where both are there, what one told
the other does not tell again, once for each time. After a gap the exporter may have been restarted: what begins to
be shown then is history.
"""

from collections.abc import Mapping
from typing import Final

from holdfast.agent.sensors.dcgm_text import XidsShown
from holdfast.api.telemetry import XidRaised

TOLD_FOR_S: Final = 120.0  # gauge and totals are gathered at their own paces, half a minute apart by default


class XidGauge:
    """`now` is CLOCK_MONOTONIC in seconds and never goes back. Memory is bounded by the GPUs a scrape may name."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._totals: dict[tuple[str, int], int] = {}
        self._told: dict[tuple[str, int], tuple[str, float]] = {}
        self._gap = True

    def observe(self, shown: Mapping[str, XidsShown], now: float) -> tuple[XidRaised, ...]:
        """The errors that are new in `shown`, by GPU UUID."""
        self._told = {key: told for key, told in self._told.items() if now - told[1] < TOLD_FOR_S}
        events = []
        for uuid, xids in shown.items():
            for xid, total in xids.totals.items():
                if self._grew(uuid, xid, total) and self._tell(uuid, xid, "total", now):
                    events.append(XidRaised(uuid, xid, 0.0, f"{total} in all, says the exporter"))
            if xids.last and self._changed(uuid, xids.last) and self._tell(uuid, xids.last, "gauge", now):
                events.append(XidRaised(uuid, xids.last, 0.0, xids.text))
        self._gap = False
        return tuple(events)

    def gap(self) -> None:
        """A look failed: the next one may be at an exporter that has started again."""
        self._gap = True

    def _grew(self, uuid: str, xid: int, total: int) -> bool:
        before = self._totals.get((uuid, xid))
        self._totals[uuid, xid] = total
        if before is None:
            return not self._gap and total > 0  # a series begins with its first error
        return total > before

    def _changed(self, uuid: str, last: int) -> bool:
        before = self._last.get(uuid)
        self._last[uuid] = last
        if before is None:
            return not self._gap
        return last != before

    def _tell(self, uuid: str, xid: int, source: str, now: float) -> bool:
        """Whether it is news: not when the other source told it lately. What is told twice is paired off."""
        told = self._told.get((uuid, xid))
        if told is not None and told[0] != source:
            del self._told[uuid, xid]
            return False
        self._told[uuid, xid] = (source, now)
        return True
