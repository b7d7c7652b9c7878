"""What became of one simulated run: where its time went, why, and what that cost."""

from enum import StrEnum

import msgspec


class LostTo(StrEnum):
    """The phases of a recovery, and whatever else holds training up."""

    DETECT = "Detect"  # from the fault until the watchdog knows
    DECIDE = "Decide"  # until the round that heals is shown: forming, waiting for spares or tests
    RESTART = "Restart"  # until all workers run and have met
    RESTORE = "Restore"  # until they have loaded what they go on from
    REPLAY = "Replay"  # steps that had been made before
    WAIT = "Wait"  # too few nodes
    SLOW = "Slow"  # steps that took longer than they should
    SAVE = "Save"  # standing still for checkpoints


class Outcome(msgspec.Struct, frozen=True):
    """`lost_s` is what was lost by name of the fault and phase, in seconds of the whole job; saves and what has no
    fault are under "". `trained_s` is time in steps that were kept. The two add up to `elapsed_s`. `full_s` is
    `trained_s` weighted by how many of the nodes that the job wants had ranks.

    `faults` counts what happened by name; `right` and `wrong` are evictions of nodes with something wrong and of
    innocent ones; `missed` are faults of machines that were never found; `pages` is how often a human was asked
    for. `recoveries_s` is, for each fault that stopped training, how long until all had made a new step.
    """

    seed: int
    elapsed_s: float
    trained_s: float
    lost_s: dict[str, dict[LostTo, float]]
    faults: dict[str, int]
    full_s: float = 0.0
    right: int = 0
    wrong: int = 0
    missed: int = 0
    spares_used: int = 0
    pages: int = 0
    rounds: int = 0
    recoveries_s: tuple[float, ...] = ()
    ended: str = ""  # why the run ended before its time, empty when it did not

    @property
    def ettr(self) -> float:
        """The share of time that was training which was kept.

        Source: https://arxiv.org/abs/2410.21680 (effective training time ratio)
        """
        return self.trained_s / self.elapsed_s if self.elapsed_s else 0.0
