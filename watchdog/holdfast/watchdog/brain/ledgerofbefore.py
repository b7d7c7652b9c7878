"""What the ledger was before every GPU-second had a row: read from the snapshots of earlier versions.

It knew the useful time, and all other time as lost. What was lost stays unjudged: nobody can say any more as what.
"""

import msgspec

from holdfast.api.ledger import MONEY_UNITS, Amount, Row
from holdfast.api.policy import GpuHour
from holdfast.watchdog.brain.accounts import EARLIER, NOBODY, Accounts, Posting
from holdfast.watchdog.brain.ledger import Lane, Ledger, Mark, microseconds


class MarkOfBefore(msgspec.Struct, frozen=True):
    """Useful time and GPU time, in seconds, once `step` was complete."""

    step: int
    useful_s: float
    useful_gpu_s: float
    saved: bool = False


class LedgerOfBefore(msgspec.Struct, frozen=True):
    """Seconds. `gpu_s`, `cost` and `held_s` are of the spells that had ended; `gpus` were held since `since`."""

    began_at: float | None = None
    first_round_at: float | None = None
    useful_s: float = 0.0
    useful_gpu_s: float = 0.0
    stepped_at: float | None = None
    marks: tuple[MarkOfBefore, ...] = ()
    held_s: float = 0.0
    held_since: float | None = None
    gpus: int = 0
    since: float = 0.0
    gpu_s: float = 0.0
    price: GpuHour | None = None
    cost: float = 0.0

    def carried(self) -> Ledger:
        """The ledger that goes on from it."""
        if self.began_at is None:
            return Ledger(first_round_at=self.first_round_at)
        trains, suspended = self.stepped_at is not None, self.held_since is not None
        since = self.stepped_at if trains else self.held_since if suspended else self.since
        assert since is not None
        held_gpu_s = self.gpu_s + self.gpus * (since - self.since)
        hour = self.price.amount if self.price is not None else 0.0
        cost = self.cost + hour * self.gpus * (since - self.since) / 3600.0
        all_of_it = Amount(
            microseconds(held_gpu_s), microseconds(since - self.began_at), round(cost * MONEY_UNITS)
        )
        kept = self._amount(self.useful_s, self.useful_gpu_s, all_of_it)
        # It also counted the time in which the job was held before anybody had joined.
        held = Amount(0, min(microseconds(self.held_s), all_of_it.wall_us - kept.wall_us), 0)
        rows = {Row.PRODUCTIVE: kept, Row.SUSPENDED: held, Row.UNJUDGED: all_of_it - kept - held}
        postings = tuple([Posting(row, EARLIER, NOBODY, amount) for row, amount in rows.items()])
        row = Row.UNJUDGED if trains else Row.SUSPENDED if suspended else Row.DECIDING
        rate = round(hour * self.gpus * MONEY_UNITS)
        marks = [
            Mark(each.step, self._amount(each.useful_s, each.useful_gpu_s, all_of_it), each.saved)
            for each in self.marks
        ]
        return Ledger(
            accounts=Accounts(postings, rows),
            ranks=Lane(row, self.gpus, rate, NOBODY, microseconds(since)),
            kept=kept,
            marks=tuple(marks),
            first_round_at=self.first_round_at,
            stepped_at=self.stepped_at,
            rate=rate,
            currency=self.price.currency if self.price is not None else "",
        )

    def _amount(self, wall_s: float, gpu_s: float, all_of_it: Amount) -> Amount:
        """Useful time with its share of the money."""
        gpu_us = microseconds(gpu_s)
        money = all_of_it.money * gpu_us // all_of_it.gpu_us if all_of_it.gpu_us else 0
        return Amount(gpu_us, microseconds(wall_s), money)
