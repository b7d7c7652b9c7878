"""What all jobs of a watchdog together know of the fleet, as `GET /v1/fleet` answers: a contract for planners."""

from typing import Final

import msgspec

from holdfast.api.place import Gathering

FLEET_PATH: Final = "/v1/fleet"


class FleetReport(msgspec.Struct, frozen=True):
    """As of `at` (watchdog's clock, seconds). `gatherings` are the places behind which faults gather, the least
    likely by chance first.
    """

    at: float
    gatherings: tuple[Gathering, ...] = ()
