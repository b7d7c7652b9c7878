"""The members of a job by name, in the order they joined: a value, like all of the state.

A change copies the names: 0.07 ms at 12,500 members. What the brain asks after every event (how many could be
given ranks, who is not there) is kept up from one roster to the next: counting anew would take 1 ms each time,
and 12,500 members that join, warm up and enter make some 40,000 events.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import msgspec

from holdfast.api.round import Reentry
from holdfast.api.telemetry import RankNonFinite


class MemberState(StrEnum):
    """Whether a member can be given ranks."""

    PRESENT = "Present"
    TESTING = "Testing"  # it is there; its devices are tested before it is given ranks
    LOST = "Lost"
    UNKNOWN = "Unknown"  # the watchdog restarted and has not heard of it yet


THERE = (MemberState.PRESENT, MemberState.TESTING)


class Member(msgspec.Struct, frozen=True):
    """One launcher that joined. `reentrant` once it said that all its workers can re-enter, `reentry` where.

    `because` is what keeps its workers from the other rounds, empty where nothing does.
    `ready_epoch` is the replica group, by its epoch, in which its workers waited at a step boundary last.
    `transfer` is its transfer server as "host:port", empty without one. `nonfinite` is what its ranks said when
    they had finished `finished_round`.
    """

    name: str
    node: str
    boot: str
    address: str
    local_size: int
    ports: tuple[int, ...]
    warm: bool
    standing: MemberState
    joined_at: float
    entered_round: int | None = None
    finished_round: int | None = None
    reentrant: bool = False
    reentry: Reentry = Reentry.ANY_WORLD
    because: str = ""
    transfer: str = ""
    nonfinite: tuple[RankNonFinite, ...] = ()
    ready_epoch: int | None = None


Change = tuple[Member | None, Member | None]
"""A member before and after; None before it joined, and once it is no member."""


def _is_as_remembered(was: Member, member: Member) -> bool:
    """Whether all of a member that an `Index` goes by is as it was."""
    return (
        was.standing is member.standing
        and was.reentrant == member.reentrant
        and was.joined_at == member.joined_at
        and was.node == member.node
        and was.local_size == member.local_size
    )


ANYBODY: Final[Set[str]] = frozenset()


@dataclass(frozen=True)
class Selection:
    """Names of the members that a rule holds for, given whose ranks and when. They have no order of their own:
    counted anew after a restart, they must say the same.
    """

    holds: Callable[[Member, Set[str], float], bool]
    among: Set[str] = ANYBODY
    at: float = 0.0
    names: dict[str, None] = field(default_factory=dict)

    def of(self, members: Iterable[Member]) -> "Selection":
        """The names among all these members."""
        names = {each.name: None for each in members if self.holds(each, self.among, self.at)}
        return replace(self, names=names)

    def after(self, changes: Iterable[Change]) -> "Selection":
        """The names once members have changed."""
        names = self.names
        for before, member in changes:
            name = (member or before).name  # type: ignore[union-attr]
            belongs = member is not None and self.holds(member, self.among, self.at)
            if belongs == (name in names):
                continue
            if names is self.names:
                names = names.copy()
            if belongs:
                names[name] = None
            else:
                del names[name]
        return self if names is self.names else replace(self, names=names)


def _stayed(member: Member, among: Set[str], at: float) -> bool:
    return member.standing is MemberState.PRESENT and member.joined_at <= at and member.name in among


def _is_tested(member: Member, among: Set[str], at: float) -> bool:
    return member.standing is MemberState.TESTING and member.name not in among


ABSENT: Final = Selection(lambda member, among, at: member.standing not in THERE)
UNHEARD: Final = Selection(lambda member, among, at: member.standing is MemberState.UNKNOWN)
RESPAWNED: Final = Selection(lambda member, among, at: not member.reentrant)
BEYOND: Final = Selection(lambda member, among, at: member.name not in among)
STAYED: Final = Selection(_stayed)
TESTED: Final = Selection(_is_tested)


@dataclass
class Index:
    """What is remembered of a roster: how many members of a size may be given ranks; once it was asked for, who is
    on which node, and selections.
    """

    present: dict[int, int] = field(default_factory=dict)
    on_node: dict[str, tuple[str, ...]] | None = None
    selections: dict[int, Selection] = field(default_factory=dict)

    def after(self, changes: Sequence[Change]) -> "Index":
        """The index once members have changed."""
        present = self.present.copy()
        for change in changes:
            for each, count in zip(change, (-1, 1), strict=True):
                if each is not None and each.standing is MemberState.PRESENT:
                    present[each.local_size] = present.get(each.local_size, 0) + count
        on_node = None if self.on_node is None else _moved(self.on_node, changes)
        return Index(present, on_node, {key: each.after(changes) for key, each in self.selections.items()})


def _moved(before: dict[str, tuple[str, ...]], changes: Iterable[Change]) -> dict[str, tuple[str, ...]]:
    """Who is on which node once members have changed."""
    on_node = before
    for known, member in changes:
        if known is not None and member is not None and known.node == member.node:
            continue
        if on_node is before:
            on_node = before.copy()
        if known is not None:
            on_node[known.node] = tuple(name for name in on_node[known.node] if name != known.name)
        if member is not None:
            on_node[member.node] = (*on_node.get(member.node, ()), member.name)
    return on_node


class Roster(msgspec.Struct, frozen=True, dict=True):
    """Immutable: every change returns a new one. Only `by_name` is part of the value; the rest follows from it."""

    by_name: dict[str, Member] = {}

    @classmethod
    def of(cls, *members: Member) -> "Roster":
        """The roster of these members, in this order."""
        return cls({member.name: member for member in members})

    def __iter__(self) -> Iterator[Member]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def get(self, name: str | None) -> Member | None:
        """The member of that name, or None."""
        return None if name is None else self.by_name.get(name)

    def joined(self, member: Member) -> "Roster":
        """With the member as the last that joined, whether or not it was known."""
        by_name = self.by_name.copy()
        known = by_name.pop(member.name, None)
        by_name[member.name] = member
        return self._followed_by(by_name, [(known, member)])

    def changed(self, name: str, **fields: Any) -> "Roster":
        """With some fields of a known member replaced; it keeps its place."""
        by_name = self.by_name.copy()
        by_name[name] = member = msgspec.structs.replace(self.by_name[name], **fields)
        return self._followed_by(by_name, [(self.by_name[name], member)])

    def replaced(self, members: Iterable[Member]) -> "Roster":
        """With these in the places of the known members of their names; for many this is one copy."""
        after = {member.name: member for member in members}
        pairs = [(self.by_name[name], member) for name, member in after.items()]
        # Nothing is remembered of the other fields, and thousands change at once when a round is entered.
        changes: list[Change] = [(was, member) for was, member in pairs if not _is_as_remembered(was, member)]
        return self._followed_by({**self.by_name, **after}, changes)

    def lost(self, names: Iterable[str]) -> "Roster":
        """With those of these members that are known no longer there."""
        return self.standing(names, MemberState.LOST)

    def standing(self, names: Iterable[str], standing: MemberState) -> "Roster":
        """With another standing of those of these members that are known; for many this is one copy."""
        known = [self.by_name[name] for name in dict.fromkeys(names) if name in self.by_name]
        after = [msgspec.structs.replace(member, standing=standing) for member in known]
        by_name = {**self.by_name, **{member.name: member for member in after}}
        return self._followed_by(by_name, list(zip(known, after, strict=True)))

    def without(self, names: Collection[str]) -> "Roster":
        """Without those members."""
        by_name = self.by_name.copy()
        gone = [by_name.pop(name) for name in names if name in by_name]
        return self._followed_by(by_name, [(member, None) for member in gone])

    def present(self, local_size: int) -> int:
        """How many members of that size are there and may be given ranks."""
        return self._index.present.get(local_size, 0)

    def absent(self) -> Set[str]:
        """Names of the members that are not there, or may not be."""
        return self._selected(ABSENT)

    def unheard(self) -> Set[str]:
        """Names of the members of which nothing is known since the watchdog restarted."""
        return self._selected(UNHEARD)

    def respawned(self) -> Set[str]:
        """Names of the members whose workers cannot re-enter a round."""
        return self._selected(RESPAWNED)

    def beyond(self, names: Set[str]) -> Set[str]:
        """Names of the members that are not among `names`; remembered for the `names` last asked about."""
        return self._selected(BEYOND, names)

    def tested(self, names: Set[str]) -> Set[str]:
        """Names of the members beyond `names` whose devices are tested; remembered as `beyond` is."""
        return self._selected(TESTED, names)

    def stayed(self, names: Set[str], at: float) -> Set[str]:
        """Names of the members among `names` that are there and were so `at`; remembered as `beyond` is."""
        return self._selected(STAYED, names, at)

    def on_nodes(self, nodes: Iterable[str]) -> list[Member]:
        """The members on any of these nodes, by name."""
        names = {name for node in nodes for name in self._on_node(node)}
        return [self.by_name[name] for name in sorted(names)]

    def _on_node(self, node: str) -> tuple[str, ...]:
        if self._index.on_node is None:
            self._index.on_node = _moved({}, [(None, member) for member in self])
        return self._index.on_node.get(node, ())

    @cached_property
    def _index(self) -> Index:
        return Index().after([(None, member) for member in self])

    def _selected(self, rule: Selection, among: Set[str] = ANYBODY, at: float = 0.0) -> Set[str]:
        selections = self._index.selections
        kept = selections.get(id(rule))
        # Whose ranks is told by identity: comparing thousands of names would take as long as selecting.
        if kept is None or kept.among is not among or kept.at != at:
            kept = selections[id(rule)] = replace(rule, among=among, at=at).of(self)
        return kept.names.keys()

    def _followed_by(self, by_name: dict[str, Member], changes: Sequence[Change]) -> "Roster":
        """The next roster, which knows already what this one knew."""
        after = Roster(by_name)
        if "_index" in self.__dict__:
            after.__dict__["_index"] = self._index.after(changes)
        return after
