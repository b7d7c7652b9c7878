"""Which values of which steps are published: no step twice, and those of the history that counts. Pure.

A job goes back: after a fault some steps are trained again, after a rewind many. A tracker whose history only
grows cannot take a step back, so its rows wait until they are final. One that can be told to forget takes each
step as soon as all of it is known, and is told to forget what was given up (`Back`).

Behind what was final a job goes back where a human asks for it, or the newest checkpoint is damaged. What is
published then stays, and so that nobody takes it for what counts, a `Retold` says up to which step it was given
up; those steps' new values are published as `again-1/NAME` (at the next such time again-2), and later ones as
before.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from holdfast.console.trackers.records import Ended, Mark, Note, Record, Row

PENDING_MAX: Final = 100_000
"""Steps that wait at most, a day and more of one a second. What is beyond is published as if it were final."""


class Shown(msgspec.Struct, frozen=True):
    """Publish these values of `step`. `series` is the prefix of their names and of that of the step."""

    step: int
    at: float
    values: dict[str, float]
    series: str = ""


class Back(msgspec.Struct, frozen=True):
    """Forget every step after this one."""

    step: int


class Retold(msgspec.Struct, frozen=True):
    """The steps after `after` up to `until` that are published were given up; those that count are in `series`."""

    after: int
    until: int
    series: str


Word = Shown | Back | Retold | Note | Ended


class Standing(msgspec.Struct):
    """What is known behind the last record that was taken; kept with its number.

    `round` went on from `since`. All rows up to `published` are out, of those up to `again_until` the ones of the
    series `again` up to `again_published`. `said` is the number of the newest note or end that was passed on.
    """

    round: int = -1
    since: int = -1
    published: int = -1
    again: int = 0
    again_until: int = -1
    again_published: int = -1
    said: int = -1

    @property
    def out(self) -> int:
        """The newest step that is published of the history that counts."""
        return self.again_published if self.again and self.published <= self.again_until else self.published

    @property
    def series(self) -> str:
        """The prefix of steps that are published once more; empty while there are none."""
        return f"again-{self.again}/" if self.again else ""


@dataclass(slots=True)
class _Pending:
    at: float
    number: int
    round: int
    values: dict[str, float] = field(default_factory=dict)


class Settling:
    """One outlet's. `forgets`: it can be told to forget steps. `standing` is its own from now on."""

    def __init__(self, standing: Standing, *, forgets: bool, pending_max: int = PENDING_MAX) -> None:
        self.standing = standing
        self._forgets = forgets
        self._pending_max = pending_max
        self._pending: dict[int, _Pending] = {}
        self._final = -1
        self._taken = 0

    @property
    def safe(self) -> int:
        """Whoever begins anew with `standing` reads on from this record."""
        return min((each.number for each in self._pending.values()), default=self._taken)

    def take(self, number: int, record: Record) -> list[Word]:
        """What is to be done now that record `number` is known."""
        self._taken = number + 1
        match record:
            case Row():
                return self._row(number, record)
            case Mark():
                known = record.heard if self._forgets else record.final
                self._final = -1 if known is None else known
                return self._settled()
            case Note():
                return [record] if self._is_news(number) else []
            case Ended():
                if not self._is_news(number):
                    return []
                return [*self._settled(everything=True), record]

    def _is_news(self, number: int) -> bool:
        if number <= self.standing.said:
            return False
        self.standing.said = number
        return True

    def _row(self, number: int, row: Row) -> list[Word]:
        standing, words = self.standing, []
        if row.round > standing.round:
            words = self._new_round(row)
        elif row.round == standing.round and row.since is not None and row.since < standing.since:
            words = self._gone_back(row.round, row.since)  # the first rows of the round did not say it
        elif row.round < standing.round and row.step > standing.since:
            return []  # of a history that was given up
        again = bool(standing.again) and row.step <= standing.again_until
        if row.step > (standing.again_published if again else standing.published):
            pending = self._pending.get(row.step)
            if pending is None or pending.round < row.round:
                pending = self._pending[row.step] = _Pending(row.at, number, row.round)
            pending.values.update(row.values)
        while len(self._pending) > self._pending_max:
            words += self._publish(min(self._pending))
        return words

    def _new_round(self, row: Row) -> list[Word]:
        """What the round went on from; where nobody says, it is the step before the first one that is heard of."""
        standing = self.standing
        since = row.step - 1 if row.since is None else row.since
        if standing.round < 0:
            standing.round, standing.since = row.round, since
            return []
        return self._gone_back(row.round, since)

    def _gone_back(self, round_: int, since: int) -> list[Word]:
        """What rounds before `round_` made behind `since` is given up."""
        standing = self.standing
        standing.round, standing.since = round_, since
        for step in [step for step, each in self._pending.items() if step > since and each.round < round_]:
            del self._pending[step]
        self._final = min(self._final, since)
        if since >= standing.out:
            return []
        if self._forgets:
            standing.published = since
            return [Back(since)]
        standing.again += 1
        standing.again_until = max(standing.published, standing.again_until)
        standing.again_published = since
        return [Retold(since, standing.again_until, standing.series)]

    def _settled(self, *, everything: bool = False) -> list[Word]:
        steps = sorted(step for step in self._pending if everything or step <= self._final)
        return [word for step in steps for word in self._publish(step)]

    def _publish(self, step: int) -> list[Word]:
        pending, standing = self._pending.pop(step), self.standing
        if standing.again and step <= standing.again_until:
            standing.again_published = max(standing.again_published, step)
            return [Shown(step, pending.at, pending.values, standing.series)]
        standing.published = max(standing.published, step)
        return [Shown(step, pending.at, pending.values)]
