"""What all jobs of a watchdog together know of the fleet, as `GET /v1/fleet` and `holdfast fleet -o json` answer.

A contract for planners: fields are added, and none is renamed or gets another meaning.
"""

from typing import Final

import msgspec

from holdfast.api.place import Gathering

FLEET_PATH: Final = "/v1/fleet"


class Rate(msgspec.Struct, frozen=True):
    """How often something failed. `group` is of what: a kind of fault, a rack, a driver version, a band of
    temperature, an hour of the day.

    `failures` interrupted training in `gpu_hours`; that is `per_1000_gpu_hours`, and with 95 % confidence the true
    rate is from `low` to `high` (exact for a Poisson process). None where no GPU time is known.
    """

    group: str
    failures: int
    gpu_hours: float
    per_1000_gpu_hours: float | None = None
    low: float | None = None
    high: float | None = None


class SpareAdvice(msgspec.Struct, frozen=True):
    """The spares that a job of `nodes` wants, and those with which at 95 of 100 times no more nodes are away."""

    job: str
    nodes: int
    spares: int
    advised: int


class FleetReport(msgspec.Struct, frozen=True):
    """As of `at` (watchdog's clock, seconds since 1970), of everything since `since`; None where nothing was
    watched.

    `all` is the rate of all interruptions, `tables` are the same told apart: "kind" by kind of fault, "hour" by
    hour of the day in UTC, "temperature" by that of the node's hottest GPU in degrees Celsius, and one by each
    kind of place that is known, such as "rack", "switch" and "driver". `node_failures_per_day` is how often a
    node fails, as checkpoints are paced by; None while too little was watched to go by it. `gatherings` are the
    places behind which faults gather, the least likely by chance first.
    """

    at: float
    since: float | None = None
    all: Rate | None = None
    tables: dict[str, tuple[Rate, ...]] = {}
    node_failures_per_day: float | None = None
    spares: tuple[SpareAdvice, ...] = ()
    gatherings: tuple[Gathering, ...] = ()
