"""The books of a job's ledger: amounts by row, day, incident and node, all in one list.

There are two ways to write: a stretch of time is booked, and GPU time is moved from one row to another. Both keep
the sum, so that all breakdowns add up to the same total. The list is bounded: of its older half the incidents and
nodes are forgotten first, then the days.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from holdfast.api.ledger import NOTHING, Amount, Row

POSTINGS_MAX: Final = 512
DAY_US: Final = 86_400_000_000
HOUR_US: Final = 3_600_000_000
EARLIER: Final = 0  # the day of what is so old that its day is forgotten


class Stretch(msgspec.Struct, frozen=True):
    """So many GPUs from one instant to another (microseconds), for `rate` billionths of money an hour, all of
    them. `wall`: they have ranks, and what they do is the job's wall time.
    """

    since: int
    until: int
    gpus: int
    rate: int
    wall: bool

    def of_days(self) -> Iterator[tuple[int, Amount]]:
        """What of it is of which day, by days since 1970 in UTC."""
        since = self.since
        while since < self.until:
            day = since // DAY_US
            until = min(self.until, (day + 1) * DAY_US)
            took = until - since
            yield day, Amount(self.gpus * took, took if self.wall else 0, self.rate * took // HOUR_US)
            since = until


class Charge(msgspec.Struct, frozen=True, array_like=True):
    """Whom a posting is for: an incident, its cause, its node; all empty where nobody is to blame."""

    incident: str = ""
    cause: str = ""
    node: str = ""


NOBODY: Final = Charge()


class Posting(msgspec.Struct, frozen=True, array_like=True):
    """An amount of one row, of one day (since 1970, UTC)."""

    row: Row
    day: int
    charge: Charge
    amount: Amount


class Accounts(msgspec.Struct, frozen=True):
    """Every posting, those first that were begun first; and what they sum to, by row."""

    postings: tuple[Posting, ...] = ()
    rows: dict[Row, Amount] = {}

    def of(self, row: Row) -> Amount:
        """All of that row."""
        return self.rows.get(row, NOTHING)

    def total(self) -> Amount:
        """All of all rows."""
        return sum(self.rows.values(), NOTHING)

    def book(self, row: Row, stretch: Stretch, charge: Charge = NOBODY) -> "Accounts":
        """With the stretch in that row."""
        after = self
        for day, amount in stretch.of_days():
            after = after._with(row, day, charge, amount)
        return after

    def move(
        self, source: Row, target: Row, gpu_us: int, charge: Charge, *, only: Charge | None = None
    ) -> "Accounts":
        """With so much GPU time of one row, at most all, in another one, of the days it was spent on: the newest
        first, because that is what a restore discards. `only`: of what was charged so.
        """
        left, taken = gpu_us, NOTHING
        postings, moved = list(self.postings), dict[int, Amount]()
        for at in range(len(postings) - 1, -1, -1):
            each = postings[at]
            if left <= 0:
                break
            if each.row is not source or (only is not None and each.charge != only) or each.amount.gpu_us <= 0:
                continue
            part = each.amount.part(left)
            left, taken = left - part.gpu_us, taken + part
            postings[at] = replaced(each, amount=each.amount - part)
            moved[each.day] = moved.get(each.day, NOTHING) + part
        # All is taken out before anything is put in: what is put in may merge what it would be taken from.
        after = Accounts(tuple(postings), {**self.rows, source: self.of(source) - taken})
        for day, amount in moved.items():
            after = after._with(target, day, charge, amount)
        return after

    def without_money(self) -> "Accounts":
        """With no money: what follows is in another currency."""
        postings = [replaced(each, amount=replaced(each.amount, money=0)) for each in self.postings]
        rows = {row: replaced(amount, money=0) for row, amount in self.rows.items()}
        return Accounts(tuple(postings), rows)

    def _with(self, row: Row, day: int, charge: Charge, amount: Amount) -> "Accounts":
        rows = {**self.rows, row: self.of(row) + amount}
        # What is written is nearly always of what was begun last.
        for at in range(len(self.postings) - 1, -1, -1):
            each = self.postings[at]
            if (each.row, each.day, each.charge) == (row, day, charge):
                same = Posting(row, day, charge, each.amount + amount)
                return Accounts((*self.postings[:at], same, *self.postings[at + 1 :]), rows)
        return Accounts(_bounded((*self.postings, Posting(row, day, charge, amount))), rows)


replaced = msgspec.structs.replace


def _bounded(postings: tuple[Posting, ...]) -> tuple[Posting, ...]:
    """At most so many: of the older half what is known of each becomes less."""
    for less in (_of_the_cause, _of_the_row):
        if len(postings) <= POSTINGS_MAX:
            break
        older, newer = postings[: -POSTINGS_MAX // 2], postings[-POSTINGS_MAX // 2 :]
        postings = (*_merged(map(less, older)), *newer)
    return postings


def _of_the_cause(posting: Posting) -> Posting:
    return replaced(posting, charge=Charge(cause=posting.charge.cause))


def _of_the_row(posting: Posting) -> Posting:
    return Posting(posting.row, EARLIER, NOBODY, posting.amount)


def _merged(postings: Iterable[Posting]) -> Iterator[Posting]:
    sums: dict[tuple[Row, int, Charge], Amount] = {}
    for each in postings:
        key = each.row, each.day, each.charge
        sums[key] = sums.get(key, NOTHING) + each.amount
    return (Posting(*key, amount) for key, amount in sums.items() if amount != NOTHING)
