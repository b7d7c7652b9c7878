"""The node as the agent sees it now: the newest reading, and what has been counted since the agent started."""

from collections import Counter
from dataclasses import dataclass, field

from holdfast.agent.sensors.sensor import Reading
from holdfast.api.telemetry import XidRaised


@dataclass(slots=True)
class Picture:
    """Written by the sensing loop, read by the exporter, both on the event loop's thread.

    `xids` counts errors by (GPU UUID, XID); `last_xid` is the newest by GPU UUID.
    """

    reading: Reading = field(default_factory=Reading)
    read_at: float = 0.0
    xids: Counter[tuple[str, int]] = field(default_factory=Counter)
    last_xid: dict[str, int] = field(default_factory=dict)

    def observe(self, reading: Reading, now: float) -> None:
        """Take in the newest reading, made at `now`."""
        self.reading, self.read_at = reading, now
        for event in reading.events:
            if isinstance(event, XidRaised):
                self.xids[event.gpu, event.xid] += 1
                self.last_xid[event.gpu] = event.xid
