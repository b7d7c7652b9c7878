"""The node as the agent sees it now: the newest readings, and what has been counted since the agent started."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.agent.sensors.sensor import Reading
from holdfast.api.telemetry import XidRaised


@dataclass(slots=True)
class Picture:
    """Written by the sensing loop, read by the exporter, both on the event loop's thread.

    `node` is the newest reading of the node's own sensors, `jobs` that of each job's ranks. `xids` counts errors
    by (GPU UUID, XID); `last_xid` is the newest by GPU UUID.
    """

    node: Reading = field(default_factory=Reading)
    jobs: Mapping[str, Reading] = field(default_factory=dict)
    read_at: float = 0.0
    xids: Counter[tuple[str, int]] = field(default_factory=Counter)
    last_xid: dict[str, int] = field(default_factory=dict)

    def observe(self, node: Reading, jobs: Mapping[str, Reading], now: float) -> None:
        """Take in the newest readings, made at `now`."""
        self.node, self.jobs, self.read_at = node, jobs, now
        for event in node.events:
            if isinstance(event, XidRaised):
                self.xids[event.gpu, event.xid] += 1
                self.last_xid[event.gpu] = event.xid

    def unreadable(self) -> frozenset[str]:
        """The sources that cannot be read now."""
        readings = (self.node, *self.jobs.values())
        return frozenset(each.source for reading in readings for each in reading.unreadable)
