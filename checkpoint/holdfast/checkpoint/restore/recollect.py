"""Finding the newest step of which every rank's snapshot is in some node's memory, and reading its images."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.api.checkpoint import Health, health_of
from holdfast.api.control import Assignment
from holdfast.api.errors import Damaged
from holdfast.api.round import Tier
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.capture.shares import unequal
from holdfast.checkpoint.commit.discovery import Found, committed_name, lineage
from holdfast.checkpoint.errors import SaveFailed
from holdfast.checkpoint.format import manifest
from holdfast.checkpoint.format.index import Listing, merge
from holdfast.checkpoint.format.manifest import FileRecord, Manifest, hash_block
from holdfast.checkpoint.memory.nodesnapshots import NodeSnapshots
from holdfast.checkpoint.memory.peers import RESTORE_PATIENCE_S, Peers
from holdfast.checkpoint.memory.protocol import Item, Which
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.sharedbuffer import hashes
from holdfast.checkpoint.restore.stored import Candidate, StoredCheckpoint

_LOG = logging.getLogger(__name__)

LIMIT = 2
"""So many steps are described to all ranks. When both turn out damaged, something is wrong with the memory."""


@dataclass(frozen=True, slots=True)
class _ImageFile:
    """An `OpenFile`: the image `which` under a checkpoint's file `name`, from the node's own memory, else from the
    peers that hold it, the nearest first.

    What no peer gives is lost with the node that held it, not away for a while: it raises Damaged, so that an
    older candidate is tried.
    """

    name: str
    which: Which
    servers: Sequence[str]
    snapshots: NodeSnapshots
    peers: Peers

    def read_into(self, offset: int, memory: memoryview) -> int:
        found = self.snapshots.find(self.which)
        if found is not None:
            file, held = found
            own = file.buffer.image[: held.record.image_bytes][offset : offset + memory.nbytes]
            memory[: own.nbytes] = own
            return own.nbytes
        reasons = []
        for server in self.servers:
            try:
                return self.peers.ask(server, lambda peer: peer.read(self.which, offset, memory))
            except OSError as error:
                reasons.append(f"{server}: {error or type(error).__name__}")
        raise Damaged(f"{self.name} is out of reach ({'; '.join(reasons) or 'no server is known'})")

    def expect(self, offset: int, length_bytes: int) -> None:
        """It is in memory already, here or there."""

    def close(self) -> None:
        """Connections are kept for the next one."""


@dataclass(frozen=True, slots=True)
class _Images:
    """The images of one step as if they were the files of a checkpoint: whose each is, and who serves it."""

    by_file: Mapping[str, tuple[Which, Sequence[str]]]
    snapshots: NodeSnapshots
    peers: Peers

    def open(self, name: str) -> _ImageFile:
        return _ImageFile(name, *self.by_file[name.rpartition("/")[2]], self.snapshots, self.peers)


class _Node(msgspec.Struct, frozen=True):
    """What one rank says: its node's transfer server and what lies in its node's memory. One rank of a node speaks
    for it; the others say nothing.
    """

    server: str = ""
    since_round: int = 0
    items: tuple[Item, ...] = ()


class _Description(msgspec.Struct, frozen=True):
    """One image. `blocks` as in a manifest: taken now when nobody had taken them before."""

    record: SnapshotRecord
    blocks: tuple[str, ...]


_NODES = msgspec.msgpack.Decoder(_Node)
_DESCRIPTIONS = msgspec.msgpack.Decoder(tuple[_Description, ...])


@dataclass(frozen=True, slots=True)
class _Place:
    """Somebody holds an image: the rank that speaks for the node, and the node's transfer server."""

    speaker: int
    server: str
    item: Item


@dataclass(frozen=True, slots=True)
class _Whole:
    """A step of which the image of every rank of its world is somewhere: `places` by rank."""

    round: int
    step: int
    world_size: int
    places: Mapping[int, Sequence[_Place]]

    def ranks(self) -> Iterator[tuple[Which, Sequence[_Place]]]:
        for rank in range(self.world_size):
            yield Which(rank=rank, round=self.round, step=self.step), self.places[rank]

    def manifest(self, records: Sequence[_Description] = ()) -> Manifest:
        return Manifest(
            format=manifest.FORMAT,
            step=self.step,
            round=self.round,
            parent=self.places[0][0].item.parent,
            world_size=self.world_size,
            batches=records[0].record.batches if records else 0,
            files={each.record.file: FileRecord(each.record.image_bytes, each.blocks) for each in records},
        )


class Recollection:
    """What the memory of the job's nodes holds: candidates, newest first, and blocks by their hash."""

    def __init__(self, snapshots: NodeSnapshots, peers: Peers, servers: Sequence[str]) -> None:
        self.candidates: tuple[Candidate, ...] = ()
        self._snapshots = snapshots
        self._peers = peers
        self._servers = servers

    def fetch(self, block_hash: str) -> bytes | None:
        """A block of any image in memory, verified; None when nobody that was asked has it."""
        own = self._snapshots.find_block(block_hash)
        if own is not None and hash_block(own) == block_hash:
            return bytes(own)
        return self._peers.block(block_hash, self._servers)

    def candidate(self, whole: _Whole, described: Sequence[_Description]) -> Candidate | None:
        """None when an image's description is missing, or they do not add up to one state, also because what one
        rank kept for others was not what those held.
        """
        by_rank = {each.record.rank: each for each in described}
        records: list[_Description] = []
        by_file: dict[str, tuple[Which, Sequence[str]]] = {}
        for which, places in whole.ranks():
            one = by_rank.get(which.rank)
            if one is None or (one.record.round, one.record.step) != (which.round, which.step):
                return None
            records.append(one)
            # An image's own node is asked first.
            nearest = sorted(places, key=lambda place: (place.item.is_copy, place.speaker))
            by_file[one.record.file] = which, [place.server for place in nearest if place.server]
        if unequal([each.record.alike for each in records]):
            _LOG.warning("ranks held in different content what one of them kept for all step=%d", whole.step)
            return None
        found = whole.manifest(records)
        try:
            index = merge(Listing(each.record.entries, each.record.paths) for each in records)
        except SaveFailed as error:
            _LOG.warning("a step in memory is not whole step=%d reason=%s", whole.step, error)
            return None
        images = _Images(by_file, self._snapshots, self._peers)
        name = _name(whole.round, whole.step)
        return Candidate(name, lambda: StoredCheckpoint(images, name, found, index), Tier.MEMORY)

    def close(self) -> None:
        """The restore is over. Candidates cannot be read any more where that takes a peer."""
        self._peers.close()


def recollect(
    group: SaveGroup,
    assignment: Assignment,
    *,
    after: tuple[int, int] | None = None,
    limit: int = LIMIT,
    patience_s: float = RESTORE_PATIENCE_S,
) -> Recollection:
    """Collective: every rank of a round that may restore from memory calls it, also one whose node keeps none.

    `after` is the (round, step) of the newest checkpoint in storage, as `Opening.newest`; only what is newer
    counts. A step counts when every rank of the world that took it is found, in a round that was not given up, and
    was finite, and no unhealthy step is known up to it.
    Raises what a collective of `group` raises, and nothing else.
    """
    memory, owner = assignment.memory, assignment.restore.owner
    snapshots = NodeSnapshots(Path("" if memory is None else memory.folder), owner)
    said = _Node()
    if memory is not None:
        try:
            snapshots.refresh()
        except OSError:
            said = _Node(since_round=memory.order.since_round)
        else:
            items = snapshots.items() if assignment.local_rank == 0 else ()
            said = _Node(server=memory.server, since_round=memory.order.since_round, items=items)
    nodes = [_NODES.decode(words) for words in group.exchange(msgspec.msgpack.encode(said))]
    keepers = () if memory is None else memory.order.keepers
    servers = dict.fromkeys([*keepers, *(node.server for node in nodes if node.items and node.server)])
    recollection = Recollection(snapshots, Peers(owner, patience_s=patience_s), tuple(servers))
    candidates = []
    for whole in _wholes(nodes, after, assignment.restore.unhealthy_from)[:limit]:
        mine = []
        for which, places in whole.ranks():
            # Hashes taken long ago come before those taken now, a rank's own before a copy.
            speaks = min(places, key=lambda place: (not place.item.is_sealed, place.item.is_copy, place.speaker))
            found = snapshots.find(which) if speaks.speaker == group.rank else None
            if found is not None:  # If it is gone since, nobody else speaks for it: no rank has this step then.
                file, held = found
                blocks = held.blocks or tuple(hashes(file.buffer, held.record.image_bytes))
                mine.append(_Description(held.record, blocks))
        heard = group.exchange(msgspec.msgpack.encode(mine))
        described = [each for words in heard for each in _DESCRIPTIONS.decode(words)]
        candidate = recollection.candidate(whole, described)
        if candidate is not None:
            candidates.append(candidate)
    recollection.candidates = tuple(candidates)
    return recollection


def _wholes(nodes: Sequence[_Node], after: tuple[int, int] | None, unhealthy_from: int | None) -> list[_Whole]:
    """The steps of which every rank's healthy image is somewhere, newest first along one line of descent."""
    since_round = max((node.since_round for node in nodes), default=0)
    steps: dict[tuple[int, int, int], dict[int, list[_Place]]] = {}
    for speaker, node in enumerate(nodes):
        for item in node.items:
            is_new = item.round >= since_round and (after is None or (item.round, item.step) > after)
            if is_new and health_of(item, unhealthy_from) is not Health.UNHEALTHY:
                places = steps.setdefault((item.round, item.step, item.world_size), {})
                places.setdefault(item.rank, []).append(_Place(speaker, node.server, item))
    wholes = {
        _name(round, step): _Whole(round, step, world_size, places)
        for (round, step, world_size), places in steps.items()
        if len(places) == world_size
    }
    line = lineage([Found(name=name, manifest=whole.manifest()) for name, whole in wholes.items()])
    return [wholes[each.name] for each in line]


def _name(round: int, step: int) -> str:
    return f"{committed_name(step)} in memory of round {round}"
