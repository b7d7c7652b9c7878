"""The port every source of truth about the node is read through."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from holdfast.agent.sensors.gpu_detail import GpuDetail
from holdfast.agent.sensors.node_detail import NodeDetail
from holdfast.agent.sensors.port_detail import PortDetail
from holdfast.api.condition import AllClear, Condition
from holdfast.api.telemetry import GpuSample, NodeEvent, RankSample, Unreadable


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at a source gave. Ages in samples and events are seconds before the `now` of that look.

    Samples and `unreadable` describe the present and replace what an earlier look said. Events happened once:
    each is in exactly one reading. `conditions` are all that hold, and those cleared less than a minute ago.
    `all_clear` is what the source can say so of now; empty while it cannot be read, or in part only. `details`,
    `ports` and `node` stay on the node, for its metrics.
    """

    ranks: tuple[RankSample, ...] = ()
    gpus: tuple[GpuSample, ...] = ()
    events: tuple[NodeEvent, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    conditions: tuple[Condition, ...] = ()
    all_clear: tuple[AllClear, ...] = ()
    details: tuple[GpuDetail, ...] = ()
    ports: tuple[PortDetail, ...] = ()
    node: NodeDetail | None = None


class Sensor(Protocol):
    """One source. `name` names it in `Unreadable` and in metrics."""

    @property
    def name(self) -> str: ...

    def read(self, now: float) -> Reading:
        """Look at the source. Called about ten times a second, always from one thread.

        `now` is the node's CLOCK_MONOTONIC in seconds. Must return within a millisecond: a slow source is read
        on a thread of its own and answers from what it last saw. A device that is sick, or a source that is
        not there, is `Unreadable` in the reading, never an exception.
        """
        ...


def joined(readings: Iterable[Reading]) -> Reading:
    """Several sensors' readings as one."""
    every = tuple(readings)
    return Reading(
        ranks=tuple(chain.from_iterable(reading.ranks for reading in every)),
        gpus=tuple(chain.from_iterable(reading.gpus for reading in every)),
        events=tuple(chain.from_iterable(reading.events for reading in every)),
        unreadable=tuple(chain.from_iterable(reading.unreadable for reading in every)),
        conditions=tuple(chain.from_iterable(reading.conditions for reading in every)),
        all_clear=tuple(chain.from_iterable(reading.all_clear for reading in every)),
        details=tuple(chain.from_iterable(reading.details for reading in every)),
        ports=tuple(chain.from_iterable(reading.ports for reading in every)),
        node=next((reading.node for reading in every if reading.node is not None), None),
    )
