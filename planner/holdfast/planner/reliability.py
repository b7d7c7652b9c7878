"""What failures make of a run: how often, how many spares, how often to save, and the share of time that trains.

The effective share of time follows Kokolis et al.: what a failure costs is the restart and half an interval
between checkpoints, what saving costs is its stall in each interval.

Sources: https://arxiv.org/abs/2410.21680 (section 4, expected training time ratio),
https://arxiv.org/abs/2407.21783 (table 5: 419 unexpected interruptions of 2,048 nodes in 54 days),
https://doi.org/10.1145/361147.361115 (Young),
https://doi.org/10.1016/j.future.2004.11.016 (Daly)
"""

import math
from statistics import NormalDist
from typing import Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.planner.bounds import not_negative
from holdfast.planner.cadence import daly_s
from holdfast.planner.quantity import Quantity, shown

ETTR: Final = "https://arxiv.org/abs/2410.21680"
LLAMA3: Final = "https://arxiv.org/abs/2407.21783"
DALY: Final = "https://doi.org/10.1016/j.future.2004.11.016"
LLAMA3_RATE: Final = 419 / (2048 * 54) * 1000
"""Unexpected interruptions for 1,000 node-days: 3.79."""
CORRUPTIONS: Final = 6 / 419
"""Silent corruption among those: 1.4%."""
DAY_S: Final = 86_400.0
LEAST_LOG: Final = -600.0


class Reliability(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rate` is failures for 1,000 node-days, `restart_s` from a failure until the step that was lost begins anew.

    `save_s` is how long a checkpoint holds training up; `repair_days` until a node is back; `waiting` is the share
    of failures that may find no spare. Of `groups` replica groups (0: not asked for) a failure takes out one, and
    holds up the others for `regroup_s` (None: reckoned from the GPUs); a share `everybody` of failures
    has all go back, which costs `back_s` each: as much as the simulator loses to one (docs/simulator.md).
    """

    rate: float = LLAMA3_RATE
    restart_s: float = 60.0
    save_s: float = 1.0
    repair_days: float = 3.0
    waiting: float = 0.01
    groups: int = 16
    regroup_s: float | None = None
    everybody: float = CORRUPTIONS
    back_s: float = 2400.0

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        wrong = list(
            not_negative(self, "reliability", ("rate", "restart_s", "save_s", "repair_days", "groups", "back_s"))
        )
        if self.regroup_s is not None:
            wrong += not_negative(self, "reliability", ("regroup_s",))
        if not 0 < self.waiting < 1:
            wrong.append(Problem("reliability.waiting", self.waiting, "give a share between 0 and 1"))
        if not 0 <= self.everybody <= 1:
            wrong.append(Problem("reliability.everybody", self.everybody, "give a share of at most 1"))
        if wrong:
            raise InvalidInput(*wrong)


def failures_per_day(nodes: int, given: Reliability) -> Quantity:
    """Of the whole job."""
    value = nodes * given.rate / 1000.0
    source = LLAMA3 if given.rate == LLAMA3_RATE else ""
    return Quantity("failures", value, "a day", f"{nodes} nodes x {given.rate:.3g} for 1,000 node-days", source)


def between_failures_s(nodes: int, given: Reliability) -> float:
    """The mean; infinite where nothing fails."""
    a_day = failures_per_day(nodes, given).value
    return DAY_S / a_day if a_day else math.inf


def save_every_s(nodes: int, given: Reliability) -> Quantity:
    """Young's interval with Daly's correction, from the end of one checkpoint to the begin of the next."""
    between = between_failures_s(nodes, given)
    says = f"sqrt(2 C tau) with Daly's correction: C {shown(given.save_s, 's')}, tau {shown(between, 's')}"
    return Quantity("checkpoint interval", daly_s(given.save_s, between), "s", says, DALY)


def effective_share(nodes: int, given: Reliability, interval_s: float) -> Quantity:
    """The share of time that trains, saving each `interval_s`; 0 where more is lost than there is."""
    a_second = failures_per_day(nodes, given).value / DAY_S
    lost = a_second * (given.restart_s + interval_s / 2.0) if a_second else 0.0
    saving = given.save_s / interval_s if interval_s else 0.0
    value = max(0.0, 1.0 - lost) / (1.0 + saving)
    says = "(1 - failures x (restart + interval / 2)) / (1 + stall / interval): "
    says += ", ".join(
        f"{what} {shown(seconds, 's')}"
        for what, seconds in (("restart", given.restart_s), ("interval", interval_s), ("stall", given.save_s))
    )
    return Quantity("effective share of time", value, "share", says, ETTR)


def spares_for(nodes: int, given: Reliability) -> Quantity:
    """Nodes to keep beside the job so that all but `waiting` of the time enough are there.

    Those in repair are binomial: each node is away for the share of time that its repairs take. As ByteRobust
    sizes its standbys, by a percentile of it.

    Source: https://arxiv.org/abs/2509.16293
    """
    away = min(0.999, given.rate / 1000.0 * given.repair_days)
    value = 0
    nobody = nodes * math.log1p(-away)
    term = total = math.exp(nobody) if nobody > LEAST_LOG else 0.0
    if term == 0.0:  # far out: the normal distribution is as good, and has no numbers too small to add up
        mean, spread = nodes * away, math.sqrt(nodes * away * (1.0 - away))
        value = math.ceil(mean + spread * NormalDist().inv_cdf(1.0 - given.waiting))
    while term and total < 1.0 - given.waiting and value < nodes:
        term *= (nodes - value) / (value + 1) * away / (1.0 - away)
        value += 1
        total += term
    says = f"binomial: {nodes} nodes, each away {away:.2%} of the time ({given.rate:.3g} for 1,000 node-days x "
    says += f"{given.repair_days:g} days), {1.0 - given.waiting:.1%} of the time enough"
    return Quantity("spare nodes", float(value), "nodes", says, "https://arxiv.org/abs/2509.16293")
