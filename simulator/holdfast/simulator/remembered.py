"""Snapshots in the memory of a large fleet: whose part is gone is all that has to be known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.api.round import Round
from holdfast.simulator.world.nodememory import Image, Memory

if TYPE_CHECKING:
    from holdfast.simulator.fleetworld import FleetWorld


class Remembered(Memory):
    """Every member of a round that made steps holds its part of the newest snapshot, and a copy of others'."""

    def __init__(self, world: FleetWorld) -> None:
        super().__init__(world)
        self._fleet = world
        self._source: Round | None = None  # whose snapshot it is
        self._image: Image | None = None
        self._gone: set[str] = set()  # whose node went since

    def note(self, round: Round, step: int) -> None:
        """The round has stopped making steps, after this one."""
        if round.memory is None:
            return
        kept = step - step % round.memory.every_steps
        if kept <= self._fleet.training.begins:
            return
        wrong = bool(self._fleet.wrong_in(round))
        self._source, self._image = round, Image(self._fleet.now, round.number, kept, 0, 1, wrong)
        self._gone.clear()

    def forget(self, member: str) -> None:
        self._gone.add(member)

    def newest(self, round: Round) -> tuple[Image, ...]:
        source, image = self._source, self._image
        if source is None or image is None or round.memory is None or source.memory is None:
            return ()
        if image.round < round.memory.since_round:
            return ()
        missing = (source.names - round.names) | (self._gone & source.names)
        for place, share in enumerate(source.ranks if missing else ()):
            if share.member in missing:
                keepers = (source.ranks[keeper].member for keeper in source.memory.keepers[place])
                if all(keeper in missing for keeper in keepers):
                    return ()
        return (image,)
