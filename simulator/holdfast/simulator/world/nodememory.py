"""Snapshots in the members' memory, and the copies that others keep: what a node held goes with the node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.api.round import Round
from holdfast.simulator.world.agenda import Agenda
from holdfast.simulator.world.member import SimulatedMember

ARENAS: Final = 2  # of each place's images a member holds so many


@dataclass(frozen=True)
class Image:
    """One member's part of a snapshot, whole from time `at` on. `wrong`: it is not what it should be."""

    at: float
    round: int
    step: int
    place: int
    places: int
    wrong: bool


class Memory:
    """What all members hold, by their names."""

    def __init__(self, agenda: Agenda, members: Mapping[str, SimulatedMember]) -> None:
        self._agenda, self._members = agenda, members
        self._held: dict[str, list[Image]] = {}

    def take(self, round: Round, step: int) -> None:
        """Every member of the round keeps its part; its keepers have theirs a little later."""
        assert round.memory is not None
        for place, share in enumerate(round.ranks):
            wrong = bool(self._members[share.member].wrong)
            now = self._agenda.now
            self._keep(share.member, Image(now, round.number, step, place, len(round.ranks), wrong))
            for keeper in round.memory.keepers[place]:
                there_at = now + self._agenda.tempo.copy_s()
                copy = Image(there_at, round.number, step, place, len(round.ranks), wrong)
                self._keep(round.ranks[keeper].member, copy)

    def forget(self, member: str) -> None:
        """Its node is gone."""
        self._held.pop(member, None)

    def newest(self, round: Round) -> tuple[Image, ...]:
        """The newest snapshot of which the round's members hold every part, empty without one."""
        assert round.memory is not None
        found: dict[tuple[int, int], dict[int, Image]] = {}
        for share in round.ranks:
            for image in self._held.get(share.member, ()):
                if image.round >= round.memory.since_round and image.at <= self._agenda.now:
                    found.setdefault((image.round, image.step), {})[image.place] = image
        whole = [key for key, parts in found.items() if len(parts) == next(iter(parts.values())).places]
        return tuple(found[max(whole)].values()) if whole else ()

    def _keep(self, member: str, image: Image) -> None:
        if member not in self._members:
            return
        held = self._held.setdefault(member, [])
        of_place = [each for each in held if each.place == image.place]
        for old in of_place[: max(0, len(of_place) - ARENAS + 1)]:
            held.remove(old)
        held.append(image)
