"""GPUs that may be taken away at short notice, beside those that may not.

An interruption costs the restart; where its notice is too short for a checkpoint, half an interval too. What
failures cost comes on top. As in `holdfast.planner.reliability`, and with the same sources.
"""

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.planner.bounds import not_negative, positive
from holdfast.planner.reliability import DAY_S, Reliability, effective_share, save_every_s

replace = msgspec.structs.replace
RATE_MOST = 1e6


class Spot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`price` of a GPU and hour, `interruptions` for 1,000 node-days, `notice_s` before each.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html (120 s)
    """

    price: float
    interruptions: float
    notice_s: float = 120.0

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        wrong = [*positive(self, "spot", ("price",)), *not_negative(self, "spot", ("interruptions", "notice_s"))]
        if not wrong and self.interruptions > RATE_MOST:
            wrong.append(Problem("spot.interruptions", self.interruptions, f"give at most {RATE_MOST:g}"))
        if wrong:
            raise InvalidInput(*wrong)


def spot_share(nodes: int, given: Reliability, spot: Spot) -> float:
    """The share of time that trains on spot nodes."""
    if spot.notice_s < given.save_s:
        both = replace(given, rate=given.rate + spot.interruptions)
        return effective_share(nodes, both, save_every_s(nodes, both).value).value
    alone = on_demand_share(nodes, given)
    restarts = nodes * spot.interruptions / 1000.0 / DAY_S * (given.restart_s + given.save_s)
    return max(0.0, alone - restarts)


def on_demand_share(nodes: int, given: Reliability) -> float:
    """The same on nodes that nobody takes away."""
    return effective_share(nodes, given, save_every_s(nodes, given).value).value


def breakeven_price(nodes: int, given: Reliability, spot: Spot, on_demand: float) -> float:
    """Of a spot GPU and hour, at which a token costs the same as at `on_demand`."""
    share = on_demand_share(nodes, given)
    return on_demand * spot_share(nodes, given, spot) / share if share else 0.0


def breakeven_interruptions(nodes: int, given: Reliability, spot: Spot, on_demand: float) -> float:
    """For 1,000 node-days, at which a token costs the same as at `on_demand`; 0 where spot is dearer in any case.

    Where not even `RATE_MOST` is enough, that.
    """
    if breakeven_price(nodes, given, replace(spot, interruptions=0.0), on_demand) <= spot.price:
        return 0.0
    least, most = 0.0, RATE_MOST
    for _ in range(60):
        middle = (least + most) / 2.0
        if breakeven_price(nodes, given, replace(spot, interruptions=middle), on_demand) > spot.price:
            least = middle
        else:
            most = middle
    return least
