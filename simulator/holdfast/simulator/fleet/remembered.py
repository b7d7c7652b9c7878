"""Snapshots in the memory of a large fleet: whose part is gone is all that has to be known of them."""

from collections.abc import Mapping

from holdfast.api.round import Round
from holdfast.simulator.world.agenda import Agenda
from holdfast.simulator.world.member import SimulatedMember
from holdfast.simulator.world.nodememory import Image, Memory


class Remembered(Memory):
    """Every member of a round that made steps holds its part of the newest snapshot, and a copy of others'."""

    def __init__(self, agenda: Agenda, members: Mapping[str, SimulatedMember]) -> None:
        super().__init__(agenda, members)
        self._source: Round | None = None  # whose snapshot it is
        self._image: Image | None = None
        self._gone: set[str] = set()  # whose node went since

    def note(self, round: Round, step: int, *, begins: int, wrong: bool) -> None:
        """The round, which began after step `begins`, has stopped after this one. `wrong`: it computed wrong."""
        kept = step - step % round.memory.every_steps if round.memory is not None else begins
        if kept > begins:
            self._source, self._image = round, Image(self._agenda.now, round.number, kept, 0, 1, wrong)
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
