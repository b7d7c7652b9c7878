"""Where every GPU-second of a job went, and what its ETTR and its money are made of: one ledger.

Who has ranks is one lane, who has none are others; each is in one row at a time. A lane's time is booked when it
is known what it was. That of training is known at the next step that every rank completed, or at a fault; until
then it is unjudged. GPU time is whole microseconds times whole GPUs, so the rows sum to what was held, exactly.

Time counts from when the first member joined, because GPUs are held from then on. With u(s) the useful time and
t(s) the time when step s was complete on every rank,

    u(s) = u(r) + t(s) - t(r)    r the step before s that was reported, of the same round
    u(s) = u(s - 1)              s the first step of its round: start-up, preflight and restore are lost
    ETTR = u(n) / (t(n) - joined - suspended)    n the newest step; now in place of t(n) while no round trains

A restore of step s takes the useful time back to u(s): what was made beyond it is discarded, and becomes computed
again. u is known at marks: exactly at the newest steps that were reported (one a minute, and the newest before any
event) and at checkpoints, in proportion between two marks otherwise.
Source: "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", section II,
https://arxiv.org/abs/2410.21680
"""

from collections.abc import Sequence

import msgspec

from holdfast.api.ledger import MONEY_UNITS, NOTHING, OF_STEPS, Amount, Row
from holdfast.watchdog.brain.accounts import NOBODY, Accounts, Charge, Stretch

# Beyond this many, every second one of the older half goes, but for those of the newest checkpoints.
MARKS_MAX = 64
SAVED_MARKS_MAX = 16
PACE_MARKS = 8
# A fault breaks what these do; the time since it began is that of detecting it.
BREAKABLE = (Row.UNJUDGED, Row.FORMING, Row.LOADING)
# Held by the job, and no fault's: neither useful nor lost.
KEPT_READY = (Row.SUSPENDED, Row.IDLE_SPARE)


def microseconds(at: float) -> int:
    """An instant or a length of time as the ledger counts it."""
    return round(at * 1_000_000)


class Mark(msgspec.Struct, frozen=True):
    """What steps that are kept had taken once `step` was complete. `saved`: a checkpoint holds that step."""

    step: int
    kept: Amount
    saved: bool = False


class Spent(msgspec.Struct, frozen=True):
    """Seconds since the first member joined: of steps that are kept, of everything else, and suspended.

    `gpu_s` is all GPU time, `cost` its money; both only grow. What a round has done since its newest complete step
    is neither useful nor lost yet; nor is the time of members that were suspended, or had no ranks.
    """

    useful_s: float
    lost_s: float
    held_s: float
    gpu_s: float
    useful_gpu_s: float
    cost: float


class Lane(msgspec.Struct, frozen=True):
    """GPUs in one row since an instant (microseconds), for `rate` billionths of money an hour, all of them."""

    row: Row
    gpus: int
    rate: int = 0
    charge: Charge = NOBODY
    since: int = 0

    def stretch(self, since: int, until: int, *, wall: bool) -> Stretch:
        """Some of its time."""
        return Stretch(since, until, self.gpus, self.rate, wall)


class Holding(msgspec.Struct, frozen=True):
    """What the job holds: GPUs with ranks (None: there are none, and will be none) and those without.

    `fault_at` is when the fault began, in seconds, that `ranks` are charged to.
    """

    ranks: Lane | None = None
    sides: tuple[Lane, ...] = ()
    fault_at: float | None = None
    currency: str = ""


class Parts(msgspec.Struct, frozen=True):
    """What of a round's steps ranks waited for data and stood still for saves: microseconds of one GPU, summed
    over all ranks since the round began.
    """

    data_us: int = 0
    checkpoint_us: int = 0

    def since(self, before: "Parts") -> "Parts":
        """What was added. Whoever counts may have begun anew."""
        if self.data_us < before.data_us or self.checkpoint_us < before.checkpoint_us:
            return self
        return Parts(self.data_us - before.data_us, self.checkpoint_us - before.checkpoint_us)


NO_PARTS = Parts()


class Ledger(msgspec.Struct, frozen=True):
    """Instants are seconds on the watchdog's clock, but in lanes.

    `first_round_at` is when the first round was shown, `stepped_at` when the newest step of the round that trains
    was complete, None while none trains. `kept` is what the steps took that are kept, `told` what of the round's
    steps was stalled, as it was last told. `entered` members have entered the newest round. `rate` is what the
    ranks cost now; those of a step that is not complete cost what they did when it began.
    """

    accounts: Accounts = Accounts()
    ranks: Lane | None = None
    sides: tuple[Lane, ...] = ()
    kept: Amount = NOTHING
    marks: tuple[Mark, ...] = ()
    first_round_at: float | None = None
    stepped_at: float | None = None
    told: Parts = Parts()
    entered: int = 0
    rate: int = 0
    currency: str = ""

    @property
    def useful_s(self) -> float:
        """Wall time of the steps that are kept."""
        return self.kept.wall_us / 1e6

    @property
    def held_s(self) -> float:
        """Wall time in which the job was suspended, of the spells that have ended."""
        return self.accounts.of(Row.SUSPENDED).wall_us / 1e6

    @property
    def price_of_now(self) -> float | None:
        """What a GPU with a rank costs for an hour, in the mean; None while none has one, or nobody says."""
        gpus = self.ranks.gpus if self.ranks is not None else 0
        return self.rate / gpus / MONEY_UNITS if gpus and self.rate else None

    @property
    def price_of_all(self) -> float | None:
        """What all that is held costs for an hour, spares included; None while nothing is, or nobody says."""
        if self.ranks is None or not self.currency:
            return None
        rate = self.rate + sum(each.rate for each in self.sides)
        is_held = self.ranks.gpus or self.sides
        return rate / MONEY_UNITS if rate or not is_held else None

    def begin(self, now: float) -> "Ledger":
        """The ledger once a round was shown, which nobody has entered yet."""
        first = self.first_round_at if self.first_round_at is not None else now
        return msgspec.structs.replace(self, first_round_at=first, entered=0, told=Parts())

    def enter(self, members: int) -> "Ledger":
        """The ledger once so many more members have entered the newest round."""
        return msgspec.structs.replace(self, entered=self.entered + members)

    def follow(self, holding: Holding, now: float) -> "Ledger":
        """The ledger once that is held.

        Money of one currency is not added to that of another: with a new one the cost begins anew.
        """
        at, ranks, sides = microseconds(now), holding.ranks, holding.sides
        if ranks is not None and self.ranks is None and not ranks.gpus:
            ranks = None  # nobody has joined yet
        rate = ranks.rate if ranks is not None else 0
        currency = holding.currency or self.currency
        if _same(ranks, self.ranks) and self._same_sides(sides) and (rate, currency) == (self.rate, self.currency):
            return self
        before = self if currency == self.currency or not self.currency else self._in_new_money(at)
        accounts, lane, others = before.accounts, before.ranks, before.sides
        if not _same(ranks, lane):
            accounts = before._left(accounts, ranks, holding.fault_at, at)
            lane = None if ranks is None else msgspec.structs.replace(ranks, since=at)
        if not before._same_sides(sides):
            accounts = _booked(accounts, others, at)
            others = tuple([msgspec.structs.replace(each, since=at) for each in sides])
        trains = lane is not None and lane.row is Row.UNJUDGED
        return msgspec.structs.replace(
            before,
            accounts=accounts,
            ranks=lane,
            sides=others,
            stepped_at=self.stepped_at if trains else None,
            rate=rate,
            currency=currency,
        )

    def step(self, step: int, at: float, told: Parts = NO_PARTS) -> "Ledger":
        """Every rank of the round completed `step` at `at`; `told` is what of its steps was stalled."""
        newest = self.marks[-1].step if self.marks else None
        if self.stepped_at is None:
            # Nobody told of a restore, and steps are made again: they were discarded.
            known = self if newest is None or newest < step else self.back_to(step - 1)
            return known._first(step, at, told)
        if newest is not None and step <= newest:
            return self
        lane = self.ranks
        assert lane is not None
        until = max(microseconds(at), lane.since)  # a commit may be heard of before the report of its step
        stretch = lane.stretch(lane.since, until, wall=True)
        before = self.accounts.total()
        accounts = self.accounts.book(Row.PRODUCTIVE, stretch)
        took, new = accounts.total() - before, told.since(self.told) if told != NO_PARTS else NO_PARTS
        data_us = min(new.data_us, took.gpu_us)
        accounts = accounts.move(Row.PRODUCTIVE, Row.DATA_WAIT, data_us, NOBODY)
        checkpoint_us = min(new.checkpoint_us, took.gpu_us - data_us)
        accounts = accounts.move(Row.PRODUCTIVE, Row.CHECKPOINT_STALL, checkpoint_us, NOBODY)
        kept = self.kept + took
        return msgspec.structs.replace(
            self,
            accounts=accounts,
            kept=kept,
            told=told if told != NO_PARTS else self.told,
            stepped_at=max(at, self.stepped_at),
            ranks=msgspec.structs.replace(lane, since=until, rate=self.rate),
            marks=_bounded((*self.marks, Mark(step, kept))),
        )

    def _first(self, step: int, at: float, told: Parts) -> "Ledger":
        """The round's first step is complete: what came before it is lost."""
        lane = self.ranks
        if lane is None:
            return self
        until = max(microseconds(at), lane.since)
        row = Row.LOADING if lane.row is Row.UNJUDGED else lane.row
        accounts = self.accounts.book(row, lane.stretch(lane.since, until, wall=True), lane.charge)
        return msgspec.structs.replace(
            self,
            accounts=accounts,
            told=told,
            stepped_at=until / 1e6,
            ranks=msgspec.structs.replace(lane, row=Row.UNJUDGED, charge=NOBODY, since=until),
            marks=_bounded((*self.marks, Mark(step, self.kept))),
        )

    def reached_at(self, step: int, now: float) -> float:
        """When the round completed `step`, which it has by `now` and may have long ago: at its own pace."""
        if self.stepped_at is None or len(self.marks) < 2:
            return now
        first, newest = self.marks[max(0, len(self.marks) - PACE_MARKS)], self.marks[-1]
        pace_s = (newest.kept.wall_us - first.kept.wall_us) / 1e6 / (newest.step - first.step)
        return min(now, self.stepped_at + max(0, step - newest.step) * pace_s)

    def saved(self, step: int) -> "Ledger":
        """A checkpoint of `step` is committed: what was useful until then stays known exactly."""
        at = self._kept_at(step)
        if at is None:
            return self
        mark = msgspec.structs.replace(at, saved=True)
        before = tuple(each for each in self.marks if each.step < step)
        after = tuple(each for each in self.marks if each.step > step)
        return msgspec.structs.replace(self, marks=_bounded((*before, mark, *after)))

    def back_to(self, step: int) -> "Ledger":
        """`step` is restored: what was made beyond it is to be computed again, for what the ranks are charged to.

        It is taken out of what was productive; what of it ranks waited for data or saves stays where it is, and
        only what is missing then comes from there.
        """
        if not self.marks or self.marks[-1].step <= step:
            return self
        at = self._kept_at(step)
        kept = at.kept if at is not None else NOTHING
        marks = () if at is None else (*(each for each in self.marks if each.step < step), at)
        accounts, charge = self.accounts, self.ranks.charge if self.ranks is not None else NOBODY
        left = self.kept.gpu_us - kept.gpu_us
        for row in OF_STEPS:
            there = min(left, accounts.of(row).gpu_us)
            accounts, left = accounts.move(row, Row.COMPUTED_AGAIN, there, charge), left - there
        return msgspec.structs.replace(self, accounts=accounts, kept=kept, marks=marks)

    def slowed(self, gpu_s: float, charge: Charge) -> "Ledger":
        """So much of what was productive was spent on waiting for slow ranks."""
        accounts = self.accounts.move(Row.PRODUCTIVE, Row.SLOW, microseconds(gpu_s), charge)
        return msgspec.structs.replace(self, accounts=accounts)

    def exonerated(self, charge: Charge, now: float) -> "Ledger":
        """A node that was kept away from had no part in the fault: nor had the time its members had no ranks."""
        at = microseconds(now)
        accounts = _booked(self.accounts, self.sides, at)
        idle_us = sum(
            each.amount.gpu_us
            for each in accounts.postings
            if each.row is Row.IDLE_SPARE and each.charge == charge
        )
        accounts = accounts.move(Row.IDLE_SPARE, Row.EVICTED_HEALTHY, idle_us, charge, only=charge)
        sides = tuple([msgspec.structs.replace(each, since=max(at, each.since)) for each in self.sides])
        return msgspec.structs.replace(self, accounts=accounts, sides=sides)

    def at(self, now: float) -> Accounts:
        """The books as if they were closed at `now`: what every GPU-second was until then."""
        lanes = () if self.ranks is None else (self.ranks,)
        until = microseconds(now)
        return _booked(_booked(self.accounts, lanes, until, wall=True), self.sides, until)

    def ettr(self, now: float) -> float | None:
        """The ratio at `now`, None before the first member joined."""
        spent = self.spent(now)
        if spent is None:
            return None
        wall_s = spent.useful_s + spent.lost_s
        return spent.useful_s / wall_s if wall_s > 0 else None

    def spent(self, now: float) -> Spent | None:
        """Where the time up to `now` went, None before the first member joined."""
        if self.ranks is None and not self.accounts.postings:
            return None
        accounts = self.at(now)
        total, kept = accounts.total(), self.kept
        pending = self._unjudged(now)
        ready = sum((accounts.of(row) for row in KEPT_READY), NOTHING)
        lost = total - kept - pending - ready
        return Spent(
            useful_s=kept.wall_us / 1e6,
            lost_s=lost.wall_us / 1e6,
            held_s=accounts.of(Row.SUSPENDED).wall_us / 1e6,
            gpu_s=total.gpu_s,
            useful_gpu_s=kept.gpu_s,
            cost=total.price,
        )

    def _unjudged(self, now: float) -> Amount:
        """What is not judged yet, and will be. What an earlier round left unjudged stays so."""
        lane, at = self.ranks, microseconds(now)
        if lane is None or lane.row is not Row.UNJUDGED or self.stepped_at is None:
            return NOTHING
        return Accounts().book(lane.row, lane.stretch(lane.since, at, wall=True)).total()

    def _left(self, accounts: Accounts, ranks: Lane | None, fault_at: float | None, at: int) -> Accounts:
        """The books once the ranks have left their row for that of `ranks`, for a fault or without one."""
        lane = self.ranks
        if lane is None or at <= lane.since:
            return accounts
        row, charge = lane.row, lane.charge
        breaks = ranks is not None and row in BREAKABLE and ranks.row is not row
        if ranks is not None and row is Row.UNJUDGED:
            if self.stepped_at is not None:
                row = Row.COMPUTED_AGAIN  # the step that was broken off
            elif ranks.row is Row.LOADING:
                row = Row.LOADING  # it tells of steps after all, and has made none
        if not breaks or fault_at is None or ranks is None or ranks.charge == lane.charge:
            return accounts.book(row, lane.stretch(lane.since, at, wall=True), charge)
        began = min(max(lane.since, microseconds(fault_at)), at)
        charge = ranks.charge if row is Row.COMPUTED_AGAIN else charge
        accounts = accounts.book(row, lane.stretch(lane.since, began, wall=True), charge)
        return accounts.book(Row.DETECTING, lane.stretch(began, at, wall=True), ranks.charge)

    def _same_sides(self, sides: Sequence[Lane]) -> bool:
        return len(sides) == len(self.sides) and all(map(_same, sides, self.sides))

    def _in_new_money(self, at: int) -> "Ledger":
        """Nothing has cost anything so far, and what is held costs nothing until it is said what."""
        lane = self.ranks
        free = None if lane is None else msgspec.structs.replace(lane, rate=0)
        sides = tuple([msgspec.structs.replace(each, rate=0) for each in self.sides])
        kept = msgspec.structs.replace(self.kept, money=0)
        marks = [
            msgspec.structs.replace(each, kept=msgspec.structs.replace(each.kept, money=0)) for each in self.marks
        ]
        accounts = self.accounts.without_money()
        return msgspec.structs.replace(
            self, accounts=accounts, ranks=free, sides=sides, kept=kept, marks=tuple(marks)
        )

    def _kept_at(self, step: int) -> Mark | None:
        """What is known of that step, None when it lies before or after all that is."""
        before = next((each for each in reversed(self.marks) if each.step <= step), None)
        after = next((each for each in self.marks if each.step > step), None)
        if before is None or before.step == step or after is None:
            return before if before is not None and before.step == step else None
        done, steps = step - before.step, after.step - before.step
        between = after.kept - before.kept
        share = Amount(
            between.gpu_us * done // steps, between.wall_us * done // steps, between.money * done // steps
        )
        return Mark(step, before.kept + share)


def _same(one: Lane | None, other: Lane | None) -> bool:
    """Whether the second goes on in the first. What a step costs that is not complete is what it did."""
    if one is None or other is None:
        return one is other
    same_rate = one.rate == other.rate or one.row is Row.UNJUDGED
    return (one.row, one.gpus, one.charge) == (other.row, other.gpus, other.charge) and same_rate


def _booked(accounts: Accounts, lanes: Sequence[Lane], until: int, *, wall: bool = False) -> Accounts:
    """With the time of each lane in its row."""
    for each in lanes:
        accounts = accounts.book(each.row, each.stretch(each.since, until, wall=wall), each.charge)
    return accounts


def _bounded(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """The newest half as it is, of the older one every second mark and those of the newest checkpoints."""
    if len(marks) <= MARKS_MAX:
        return tuple(marks)
    saved = {each.step for each in [each for each in marks if each.saved][-SAVED_MARKS_MAX:]}
    older, newer = marks[: -MARKS_MAX // 2], marks[-MARKS_MAX // 2 :]
    return (*(each for at, each in enumerate(older) if at % 2 == 0 or each.step in saved), *newer)
