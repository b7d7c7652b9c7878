"""How the agent itself does: what it can read, and whether the watchdog hears it."""

import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.agent.picture import Picture
from holdfast.api.exposition import Page


@dataclass(frozen=True, slots=True)
class Line:
    """One job's line to the watchdog: whether it stands, reports sent, events lost for want of room."""

    job: str
    connected: bool
    reports: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the agent costs its node: CPU time of all threads in seconds, and memory."""

    cpu_s: float
    resident_bytes: int | None

    @classmethod
    def now(cls) -> "Footprint":
        """This process's. Source: https://man7.org/linux/man-pages/man5/proc_pid_statm.5.html"""
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                resident_bytes = int(file.read().split()[1]) * resource.getpagesize()
        except (OSError, ValueError, IndexError):
            resident_bytes = None
        return cls(time.process_time(), resident_bytes)


def write_footprint(page: Page, footprint: Footprint, *, node: str) -> None:
    """What the agent costs."""
    page.put("holdfast_agent_cpu_seconds_total", footprint.cpu_s, node)
    page.put("holdfast_agent_resident_memory_bytes", footprint.resident_bytes, node)


def write_itself(page: Page, picture: Picture, lines: Iterable[Line], *, node: str) -> None:
    """Every source ever met, and every job's line."""
    for source, readable in sorted(picture.readable.items()):
        page.put("holdfast_sensor_up", float(readable), source, node)
        page.put("holdfast_sensor_failures_total", picture.failures[source], source, node)
    for sensor, looks in picture.looks.items():
        page.put_summary("holdfast_sensor_read_seconds", sensor, node, count=looks.count, total=looks.total_s)
    for line in lines:
        labels = (line.job, node)
        page.put("holdfast_agent_watchdog_connected", float(line.connected), *labels)
        page.put("holdfast_agent_reports_sent_total", line.reports, *labels)
        page.put("holdfast_agent_events_dropped_total", line.dropped, *labels)
