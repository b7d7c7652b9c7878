"""The conditions that one source has raised and cleared, by rules that are rows of tables. Pure.

`now` is CLOCK_MONOTONIC in seconds and never goes back. A value that is Unknown proves nothing: what was raised
stays raised.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

import msgspec

from holdfast.agent.reading import Reading
from holdfast.api.condition import AllClear, Condition, ConditionKind, ConditionState

# A report that is lost is made good by the next: so long every report says that it is over.
CLEARED_KEPT_S: Final = 60.0
# A sick node raises some dozen. Past the bound nothing more is raised, as the first ones name the cause.
KEPT_MAX: Final = 512
# Of a kind whose rule is not yet met on more parts than these nothing is said: the list would fill the report.
OPEN_TOLD_MAX: Final = 16

Seen = TypeVar("Seen")


class Unknown(Enum):
    """What a look that tells nothing does to the time that something has to last."""

    STOPS = "it stands still"
    RESTARTS = "it begins anew"
    RESTARTS_CLEARING = "that of being well begins anew, that of being ill goes on"


@dataclass(frozen=True, kw_only=True)  # no slots: a generic sets its own attribute on what it makes
class Rule(Generic[Seen]):
    """When a condition is raised and cleared, judged from what is seen of one part at a look.

    `raise_if` says True: it is there, False: it is over by the rule, None: neither, or Unknown. Both have to last.
    `says` are the words while it is there, `over` those when it is cleared (None: the same).
    """

    kind: ConditionKind
    raise_if: Callable[[Seen], bool | None]
    says: Callable[[Seen], str]
    over: Callable[[Seen], str] | None = None
    raise_after_s: float = 0.0
    clear_after_s: float = 0.0
    unknown: Unknown = Unknown.STOPS


class Debounce:
    """Raised after `raise_after_s` present, cleared after `clear_after_s` absent.

    What happened between two looks that are further apart than `gap_s_max` is Unknown, and the time stands still.
    """

    def __init__(
        self,
        raise_after_s: float,
        clear_after_s: float,
        gap_s_max: float = float("inf"),
        unknown: Unknown = Unknown.STOPS,
    ) -> None:
        self.holds: bool | None = None  # None: neither has lasted
        self._after_s = {True: raise_after_s, False: clear_after_s}
        self._gap_s_max = gap_s_max
        self._unknown = unknown
        self._present: bool | None = None
        self._since = self._at = 0.0
        self._stopped = False

    def observe(self, present: bool | None, now: float) -> bool | None:
        """Take in what is seen. True: it holds; False: it is over; None: neither has lasted yet."""
        if present is None:
            if self._unknown is Unknown.STOPS:
                self._stopped = True
            elif self._unknown is Unknown.RESTARTS or not self._present:
                self._present = None
            return self.holds
        if present != self._present:
            self._present, self._since = present, now
        elif self._stopped or now - self._at > self._gap_s_max:
            self._since += now - self._at
        self._at, self._stopped = now, False
        if now - self._since >= self._after_s[present]:
            self.holds = present
        return self.holds


class Held(msgspec.Struct, frozen=True):
    """One condition as it is remembered over a restart. `since` is CLOCK_MONOTONIC in seconds, of its boot.

    `measure` is what its rule compares with, where that has to be remembered too.
    """

    kind: ConditionKind
    says: str
    since: float
    gpu: str = ""
    device: str = ""
    measure: float | None = None


@dataclass(frozen=True, slots=True)
class _Entry:
    state: ConditionState
    since: float
    says: str


class ConditionBook:
    """`gpu` and `device` as in `Condition`, both together are a part. `gap_s_max` as in `Debounce`."""

    def __init__(self, *, gap_s_max: float = float("inf")) -> None:
        self._gap_s_max = gap_s_max
        self._entries: dict[tuple[ConditionKind, str, str], _Entry] = {}
        self._debounces: dict[tuple[ConditionKind, str, str], Debounce] = {}
        self._over: defaultdict[ConditionKind, set[tuple[str, str]]] = defaultdict(set)  # where the rule was met
        self._open: defaultdict[ConditionKind, set[tuple[str, str]]] = defaultdict(set)  # and where it was not

    def judge(self, rule: Rule[Seen], seen: Seen, now: float, *, gpu: str = "", device: str = "") -> None:
        """Apply one rule to what is seen of a part now. Called at each look at it."""
        present = holds = rule.raise_if(seen)
        if rule.raise_after_s or rule.clear_after_s:
            debounce = self._debounces.get((rule.kind, gpu, device))
            if debounce is None:
                debounce = Debounce(rule.raise_after_s, rule.clear_after_s, self._gap_s_max, rule.unknown)
                self._debounces[rule.kind, gpu, device] = debounce
            holds = present if debounce.observe(present, now) == present else None
        if holds is None:
            self.doubt(rule.kind, gpu=gpu, device=device)
        elif holds:
            self.hold(rule.kind, rule.says(seen), now, gpu=gpu, device=device)
        else:
            self.clear(rule.kind, (rule.over or rule.says)(seen), now, gpu=gpu, device=device)

    def hold(self, kind: ConditionKind, says: str, now: float, *, gpu: str = "", device: str = "") -> None:
        """It holds. Said again it keeps its age, and only what it says is replaced."""
        key = (kind, gpu, device)
        self._over[kind].discard((gpu, device))
        self._open[kind].add((gpu, device))
        before = self._entries.get(key)
        if before is None and len(self._entries) >= KEPT_MAX:
            return
        raised = before is not None and before.state is ConditionState.RAISED
        since = before.since if before is not None and raised else now
        self._entries[key] = _Entry(ConditionState.RAISED, since, says)

    def clear(self, kind: ConditionKind, says: str, now: float, *, gpu: str = "", device: str = "") -> None:
        """It is over by its rule. What does not hold stays as it is."""
        self._open[kind].discard((gpu, device))
        self._over[kind].add((gpu, device))
        if self.holds(kind, gpu=gpu, device=device):
            self._entries[kind, gpu, device] = _Entry(ConditionState.CLEARED, now, says)

    def doubt(self, kind: ConditionKind, *, gpu: str = "", device: str = "") -> None:
        """Its rule says neither now. A part on which it was met before, and that was not raised since, is well."""
        if (gpu, device) not in self._over[kind]:
            self._open[kind].add((gpu, device))

    def holds(self, kind: ConditionKind, *, gpu: str = "", device: str = "") -> bool:
        """Whether it was raised and not cleared since."""
        entry = self._entries.get((kind, gpu, device))
        return entry is not None and entry.state is ConditionState.RAISED

    def take_up(self, held: Iterable[Held]) -> None:
        """What an earlier run had raised holds until it is cleared. Called before anything is judged."""
        for each in held:
            self.hold(each.kind, each.says, each.since, gpu=each.gpu, device=each.device)

    def held(self) -> tuple[Held, ...]:
        """What holds, to be remembered."""
        return tuple(
            Held(kind, entry.says, round(entry.since, 3), gpu, device)
            for (kind, gpu, device), entry in self._entries.items()
            if entry.state is ConditionState.RAISED
        )

    def report(self, now: float) -> tuple[Condition, ...]:
        """All that hold, and what was cleared less than a minute ago. What is older is forgotten."""
        for key, entry in tuple(self._entries.items()):
            if entry.state is ConditionState.CLEARED and now - entry.since > CLEARED_KEPT_S:
                del self._entries[key]
        return tuple(
            Condition(kind, entry.state, max(0.0, now - entry.since), entry.says, gpu, device)
            for (kind, gpu, device), entry in self._entries.items()
        )

    def all_clear(self) -> tuple[AllClear, ...]:
        """The kinds whose rule was met on some part since the start, each with the parts on which it was not.

        For a reading: only while every part of the source can be read.
        """
        met = {kind: tuple(sorted(self._open[kind])) for kind, parts in self._over.items() if parts}
        return tuple(AllClear(kind, but) for kind, but in met.items() if len(but) <= OPEN_TOLD_MAX)


def all_clear(
    judges: Mapping[str, frozenset[ConditionKind]], readings: Mapping[str, Reading]
) -> tuple[AllClear, ...]:
    """Condition kinds that every source which judges them reports clear, but for parts that any of them excepts.

    `judges` has what each source judges, by its name, and `readings` what it says. A source that says nothing
    keeps a kind from being told, and a kind that no source here judges is Unknown: what an agent with other
    settings had raised of it stays until somebody returns the node.
    """
    said = {name: {each.kind: each.but for each in reading.all_clear} for name, reading in readings.items()}
    told = []
    for kind in ConditionKind:
        parts = [said.get(name, {}).get(kind) for name, kinds in judges.items() if kind in kinds]
        known = [each for each in parts if each is not None]
        but = tuple(sorted({part for each in known for part in each}))
        if parts and len(known) == len(parts) and len(but) <= OPEN_TOLD_MAX:
            told.append(AllClear(kind, but))
    return tuple(told)
