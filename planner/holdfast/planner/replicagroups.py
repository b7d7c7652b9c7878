"""What replica groups would make of failures: a failure takes out its group, the others go on without it.

All others stand still until the groups that are left have met anew, and once more when the lost one is back and
copies its state. No step is done again, but for failures that a group cannot answer alone (silent corruption, a
loss that is no number): these have everybody go back to a checkpoint that was found healthy. What averaging
between groups takes in each step is not in it.

Sources: https://arxiv.org/abs/2602.00277 (44% of the time without groups, 80% with them: 18 minutes between
failures, ten to restart, three of which the others stand still for; 16 groups are fitted),
https://arxiv.org/abs/2407.21783 (table 5: silent corruption is 6 of 419 interruptions)
"""

import math
from typing import Final

import msgspec

from holdfast.planner.cadence import daly_s
from holdfast.planner.quantity import Quantity, shown
from holdfast.planner.reliability import Reliability, between_failures_s

FT_HSDP: Final = "https://arxiv.org/abs/2602.00277"
MEET_S: Final = 0.2
MEET_S_PER_GPU: Final = 1e-4
COPY_S: Final = 10.0
"""As the simulator assumes (docs/simulator.md): all ranks meet in one store; a group copies 10 GB a GPU."""


class Shares(msgspec.Struct, frozen=True):
    """Of the time: that in which the job trains, by however many groups; and the same by the GPUs that train."""

    trains: Quantity
    goodput: Quantity


def regroup_s(gpus: int, given: Reliability) -> float:
    """How long the others stand still for one failure: they meet twice, and once a group copies."""
    if given.regroup_s is not None:
        return given.regroup_s
    return 2.0 * (MEET_S + MEET_S_PER_GPU * gpus) + COPY_S


def in_groups(nodes: int, gpus: int, given: Reliability) -> Shares | None:
    """What is left of the time in `given.groups` groups, saving as often as is best for failures of everybody;
    None where there are fewer nodes than groups, or nothing fails.
    """
    if nodes < given.groups or not given.groups or not given.rate:
        return None
    between_s, everybody = between_failures_s(nodes, given), given.everybody
    stop_s = regroup_s(gpus, given)
    lost = ((1.0 - everybody) * stop_s + everybody * given.back_s) / between_s
    interval_s = daly_s(given.save_s, between_s / everybody) if everybody else math.inf
    saving = given.save_s / interval_s if interval_s else 0.0
    trains = max(0.0, 1.0 - lost) / (1.0 + saving)
    says = f"each failure stops the others for {shown(stop_s, 's')}; {everybody:.1%} of them cost everybody "
    says += (
        f"{shown(given.back_s, 's')} each; a stall of {shown(given.save_s, 's')} every {shown(interval_s, 's')}"
    )
    away = (1.0 - everybody) * given.restart_s / between_s / given.groups
    kept = (
        f"that, less {away:.2%}: of {given.groups} groups one is away for {shown(given.restart_s, 's')} each time"
    )
    time = Quantity("effective share of time in replica groups", trains, "share", says, FT_HSDP)
    name = "the same, counting groups that are away"
    return Shares(time, Quantity(name, max(0.0, trains - away), "share", kept, FT_HSDP, (time,)))
