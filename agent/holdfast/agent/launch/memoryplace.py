"""Where a node's snapshots in memory lie, as its workers are told."""

from dataclasses import dataclass

from holdfast.api.memory import NodeMemory
from holdfast.api.round import Seat


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """`folder` of the snapshots, `server` that serves them ("host:port")."""

    folder: str
    server: str

    def part_in(self, seat: Seat) -> NodeMemory | None:
        """What the workers of `seat` are told; None when its round keeps no snapshots in memory.

        Without the name of the job's life nobody could tell whose snapshots are found.
        """
        if seat.memory is None or not seat.restore.owner:
            return None
        return NodeMemory(seat.memory, self.folder, self.server)
