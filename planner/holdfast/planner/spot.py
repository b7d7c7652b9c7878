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


def is_saved(given: Reliability, spot: Spot, written_s: float = 0.0) -> bool:
    """Whether a checkpoint fits the notice, which takes `written_s` to storage (0: it is not known)."""
    return spot.notice_s >= max(given.save_s, written_s)


def spot_share(nodes: int, given: Reliability, spot: Spot, written_s: float = 0.0) -> float:
    """The share of time that trains on spot nodes. No checkpoint follows sooner than `written_s`."""
    if not is_saved(given, spot, written_s):
        return on_demand_share(nodes, replace(given, rate=given.rate + spot.interruptions), written_s)
    alone = on_demand_share(nodes, given, written_s)
    restarts = nodes * spot.interruptions / 1000.0 / DAY_S * (given.restart_s + given.save_s)
    return max(0.0, alone - restarts)


def on_demand_share(nodes: int, given: Reliability, written_s: float = 0.0) -> float:
    """The same on nodes that nobody takes away."""
    return effective_share(nodes, given, max(written_s, save_every_s(nodes, given).value)).value


def breakeven_price(nodes: int, given: Reliability, spot: Spot, on_demand: float, written_s: float = 0.0) -> float:
    """Of a spot GPU and hour, at which a token costs the same as at `on_demand`."""
    share = on_demand_share(nodes, given, written_s)
    return on_demand * spot_share(nodes, given, spot, written_s) / share if share else 0.0


def breakeven_interruptions(
    nodes: int, given: Reliability, spot: Spot, on_demand: float, written_s: float = 0.0
) -> float:
    """For 1,000 node-days, at which a token costs the same as at `on_demand`; 0 where spot is dearer in any case.

    Where not even `RATE_MOST` is enough, that.
    """

    def is_worth_it(interruptions: float) -> bool:
        asked = replace(spot, interruptions=interruptions)
        return breakeven_price(nodes, given, asked, on_demand, written_s) > spot.price

    if not is_worth_it(0.0):
        return 0.0
    least, most = 0.0, RATE_MOST
    for _ in range(60):
        middle = (least + most) / 2.0
        least, most = (middle, most) if is_worth_it(middle) else (least, middle)
    return least
