"""Snapshots in host memory: what a round says of them, and what its members and workers are told.

Each member runs a transfer server, which serves the snapshots in its node's memory to the others and keeps copies
for them. Who keeps whose copies is decided with the round, so that one failure domain never holds all of a
snapshot.
"""

import msgspec


class MemoryRound(msgspec.Struct, frozen=True):
    """What a round says of snapshots in memory. Members are known by their place in the round's rank order.

    A snapshot is taken after every `every_steps` steps. Those of rounds before `since_round` count no more: a
    rewind has given their history up. `servers` are the members' transfer servers as "host:port", empty for a
    member without one; `keepers` says for each member at which places its copies are kept.
    """

    every_steps: int
    since_round: int
    servers: tuple[str, ...]
    keepers: tuple[tuple[int, ...], ...]

    def order_for(self, place: int) -> "MemoryOrder":
        """What the member at `place` is told."""
        servers = tuple(self.servers[each] for each in self.keepers[place])
        return MemoryOrder(self.every_steps, self.since_round, servers)


class MemoryOrder(msgspec.Struct, frozen=True):
    """A member's part: `every_steps` and `since_round` as above, `keepers` the servers that keep its copies."""

    every_steps: int
    since_round: int
    keepers: tuple[str, ...] = ()


class NodeMemory(msgspec.Struct, frozen=True):
    """What a worker is told: the order, the node's folder for snapshots, its own transfer server ("host:port")."""

    order: MemoryOrder
    folder: str
    server: str
