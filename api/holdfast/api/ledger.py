"""The ledger of a job as it is told: every GPU-second in exactly one row, with its money.

GPU time is in whole microseconds of one GPU, money in billionths of the currency: sums of both are exact.
"""

from enum import StrEnum

import msgspec

from holdfast.api.bounds import Name, Text

GPU_HOUR_US = 3_600_000_000
MONEY_UNITS = 1_000_000_000
FILE_NAME = "ledger.json"
BYTES_MAX = 1 << 19
"""How large the file in a checkpoint is at the most: it fits into a frame."""
VERSION = 1


class Row(StrEnum):
    """What a GPU-second of a job was spent on. docs/cost.md says where each begins and ends."""

    PRODUCTIVE = "Productive"  # a step that is kept
    SLOW = "Slow"  # of such steps: what all ranks waited for ranks that were found slow
    DATA_WAIT = "DataWait"  # of such steps: ranks waited for their data
    CHECKPOINT_STALL = "CheckpointStall"  # of such steps: ranks stood still for a save
    DETECTING = "Detecting"  # from a fault to its finding
    DECIDING = "Deciding"  # from the finding to the round that is shown
    FORMING = "Forming"  # from there until every member has entered it
    LOADING = "Loading"  # from there until its first step: start-up, restore, warm-up
    COMPUTED_AGAIN = "ComputedAgain"  # steps that a restore discarded, and steps that were broken off
    SELF_TEST = "SelfTest"  # devices were tested, and ranks waited for that
    WAITING_FOR_NODES = "WaitingForNodes"  # too few members were there
    IDLE_SPARE = "IdleSpare"  # members without ranks
    SUSPENDED = "Suspended"  # members of a job that is held
    EVICTED_HEALTHY = "EvictedHealthy"  # members on a node that was kept away from, and had no part in the fault
    UNJUDGED = "Unjudged"  # since the newest step: the next one, or a fault, tells what it was


OF_STEPS = (Row.PRODUCTIVE, Row.SLOW, Row.DATA_WAIT, Row.CHECKPOINT_STALL)
"""What steps that are kept are made of: the useful time of ETTR."""
"""What a fault costs, one after the other."""


class Amount(msgspec.Struct, frozen=True, array_like=True):
    """Microseconds of one GPU; of the ranks' wall time (none of members without ranks); billionths of money."""

    gpu_us: int = 0
    wall_us: int = 0
    money: int = 0

    def __add__(self, other: "Amount") -> "Amount":
        return Amount(self.gpu_us + other.gpu_us, self.wall_us + other.wall_us, self.money + other.money)

    def __sub__(self, other: "Amount") -> "Amount":
        return Amount(self.gpu_us - other.gpu_us, self.wall_us - other.wall_us, self.money - other.money)

    def part(self, gpu_us: int) -> "Amount":
        """So much GPU time of it, at most all, with its share of the rest."""
        if gpu_us >= self.gpu_us:
            return self
        return Amount(gpu_us, self.wall_us * gpu_us // self.gpu_us, self.money * gpu_us // self.gpu_us)

    @property
    def gpu_hours(self) -> float:
        return self.gpu_us / GPU_HOUR_US

    @property
    def gpu_s(self) -> float:
        return self.gpu_us / 1e6

    @property
    def price(self) -> float:
        """Its money, in the currency."""
        return self.money / MONEY_UNITS


NOTHING = Amount()


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line: GPU time of one row, for one incident, of one day. `day` is of UTC, such as 2026-01-31.

    Empty: `incident` and `cause` of what no fault cost, `node` where no node is the culprit, or the spare.
    """

    row: Row
    day: Name
    gpu_us: int
    money: int = 0
    incident: Name = ""
    cause: Text = ""
    node: Name = ""


class LedgerReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of one job's ledger at `at` (watchdog clock, seconds): the entries sum to `gpu_us` and `money`.

    `currency` is empty without a price; `budget` is what the job may cost, None: nobody says. `useful_wall_s` is
    the wall time of steps that are kept, `wall_s` all but what was suspended and what nobody has judged yet: ETTR
    is one over the other.
    """

    job: Name
    at: float
    gpu_us: int
    money: int
    entries: tuple[Entry, ...]
    currency: Name = ""
    budget: float | None = None
    team: Name = ""
    useful_wall_s: float = 0.0
    wall_s: float = 0.0
    version: int = VERSION
