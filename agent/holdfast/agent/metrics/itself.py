"""How the agent itself does: what it can read, and whether the watchdog hears it."""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.agent.metrics.sheet import Sheet
from holdfast.agent.picture import Picture


@dataclass(frozen=True, slots=True)
class Line:
    """One job's line to the watchdog: whether it stands, reports sent, events lost for want of room."""

    job: str
    connected: bool
    reports: int
    dropped: int


def write_itself(sheet: Sheet, picture: Picture, lines: Iterable[Line], *, node: str) -> None:
    """Every source ever met, and every job's line."""
    for source, readable in sorted(picture.readable.items()):
        sheet.put("holdfast_sensor_up", (source, node), float(readable))
        sheet.put("holdfast_sensor_failures_total", (source, node), picture.failures[source])
    for sensor, looks in picture.looks.items():
        sheet.put_summary("holdfast_sensor_read_seconds", (sensor, node), count=looks.count, total=looks.total_s)
    for line in lines:
        labels = (line.job, node)
        sheet.put("holdfast_agent_watchdog_connected", labels, float(line.connected))
        sheet.put("holdfast_agent_reports_sent_total", labels, line.reports)
        sheet.put("holdfast_agent_events_dropped_total", labels, line.dropped)
