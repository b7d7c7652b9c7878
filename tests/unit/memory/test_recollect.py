"""Which step all ranks restore from memory, and from whose."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
import torch

from holdfast.api.control import Assignment
from holdfast.api.errors import Damaged
from holdfast.api.memory import MemoryOrder, NodeMemory
from holdfast.api.round import Endpoint, Restore, Tier
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.format import archive
from holdfast.checkpoint.format.index import Box, Stored, StoredChunk, StoredObject, StoredTensor
from holdfast.checkpoint.format.manifest import record_of
from holdfast.checkpoint.memory.nodesnapshots import copy_name, own_name
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.sharedbuffer import SharedBuffer
from holdfast.checkpoint.restore.recollect import Recollection, recollect

NOBODY = "127.0.0.1:1"


class Table:
    """Ranks as threads that exchange words."""

    def __init__(self, world_size: int) -> None:
        self.words: list[bytes] = [b""] * world_size
        self.barrier = threading.Barrier(world_size, timeout=30)


class Seat(SaveGroup):
    def __init__(self, table: Table, rank: int) -> None:
        self.rank, self.world_size = rank, len(table.words)
        self._table = table

    def exchange(self, words: bytes) -> list[bytes]:
        self._table.words[self.rank] = words
        self._table.barrier.wait()
        heard = list(self._table.words)
        self._table.barrier.wait()
        return heard


def rows(step: int, rank: int) -> torch.Tensor:
    return torch.arange(6, dtype=torch.float32).reshape(2, 3) + 100 * step + 10 * rank


def image_of(step: int, rank: int, world_size: int) -> tuple[bytes, dict[str, Stored]]:
    """Two rows of the tensor `weight`, and the object `extra` on rank 0."""
    file, frame = f"__{rank}_0.distcp", archive.frame(torch.float32, (2, 3))
    packed = archive.pack_object({"step": step}) if rank == 0 else b""
    tensor = frame.before + rows(step, rank).numpy().tobytes() + frame.after
    box = Box(offsets=(2 * rank, 0), sizes=(2, 3))
    chunk = StoredChunk(file=file, start=0, length_bytes=len(tensor), payload=len(frame.before), box=box)
    entries: dict[str, Stored] = {
        "weight": StoredTensor(dtype="float32", shape=(2 * world_size, 3), chunks=(chunk,))
    }
    if packed:
        entries["extra"] = StoredObject(file=file, start=len(tensor), length_bytes=len(packed))
    return tensor + packed, entries


def leave(
    folder: Path,
    *,
    rank: int,
    step: int,
    round: int = 1,
    world_size: int = 2,
    owner: str = "life",
    number: int = 0,
    is_copy: bool = False,
    parent: int | None = None,
    healthy: bool | None = None,
) -> SharedBuffer:
    """A snapshot in a node's folder, as a rank or a keeper leaves it."""
    folder.mkdir(exist_ok=True)
    image, entries = image_of(step, rank, world_size)
    name = copy_name(rank, number) if is_copy else own_name(rank, number)
    buffer = SharedBuffer.create(folder / name, len(image))
    buffer.begin()
    buffer.image[: len(image)] = image
    record = SnapshotRecord(
        owner, round, rank, world_size, step, step, f"__{rank}_0.distcp", len(image), entries,
        {name: (name,) for name in entries}, parent, (), healthy,
    )  # fmt: skip
    buffer.complete(record)
    if is_copy:
        buffer.seal(buffer.generation, record_of([memoryview(image)]).blocks)
    return buffer


def assignment(
    folder: Path | None, rank: int, world_size: int, *, since_round: int = 0, unhealthy_from: int | None = None
) -> Assignment:
    order = MemoryOrder(every_steps=1, since_round=since_round)
    return Assignment(
        job="job",
        round=9,
        rank=rank,
        local_rank=0,
        world_size=world_size,
        local_size=1,
        endpoint=Endpoint("", 0),
        restore=Restore(tier=Tier.MEMORY, owner="life", unhealthy_from=unhealthy_from),
        reason="",
        memory=None if folder is None else NodeMemory(order, str(folder), NOBODY),
    )


def together(
    folders: Sequence[Path | None], act: Callable[[Recollection], object], **options: object
) -> list[object]:
    """`recollect` on one rank for each folder; what `act` made of it, or the error it ended with, by rank."""
    table, results = Table(len(folders)), [None] * len(folders)
    said = {name: options.pop(name) for name in ("since_round", "unhealthy_from") if name in options}

    def run(rank: int) -> None:
        mine = assignment(folders[rank], rank, len(folders), **said)  # type: ignore[arg-type]
        try:
            results[rank] = act(recollect(Seat(table, rank), mine, **options))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(folders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return results


def names(found: Recollection) -> list[str]:
    return [f"{each.name}" for each in found.candidates]


def whole_weight(found: Recollection) -> list[float]:
    checkpoint = found.candidates[0].open()
    assert checkpoint.read_object("extra") == {"step": checkpoint.manifest.step}
    return checkpoint.read_tensor("weight").flatten().tolist()


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Each rank's own snapshot of steps 4 and 5 on its node, and a copy of it on the other."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for rank in range(2):
        for number, step in enumerate((4, 5)):
            leave(folders[rank], rank=rank, step=step, number=number)
            leave(folders[1 - rank], rank=rank, step=step, number=number, is_copy=True)
    return folders


def expected(step: int) -> list[float]:
    return torch.cat([rows(step, 0), rows(step, 1)]).flatten().tolist()


def test_the_newest_whole_step_is_read_bit_equal_on_every_rank(nodes: list[Path]) -> None:
    assert together(nodes, whole_weight) == [expected(5)] * 2
    first, second = names(together(nodes, lambda found: found)[0])
    assert first.startswith("step-00000005")
    assert second.startswith("step-00000004")


def test_a_lost_node_is_made_up_for_by_its_keeper(nodes: list[Path], tmp_path: Path) -> None:
    assert (
        together([nodes[0], tmp_path / "new"], lambda found: names(found)[0])
        == ["step-00000005 in memory of round 1"] * 2
    )
    assert together([nodes[0]], whole_weight) == [expected(5)]


def test_a_rank_without_memory_takes_part(nodes: list[Path]) -> None:
    results = together([nodes[0], None], names)
    assert results[0] == results[1] != []


def test_a_step_that_is_not_there_of_every_rank_does_not_count(nodes: list[Path]) -> None:
    leave(nodes[0], rank=0, step=6, number=2)
    assert together(nodes, whole_weight) == [expected(5)] * 2


def test_only_what_is_newer_than_the_newest_checkpoint_counts(nodes: list[Path]) -> None:
    assert together(nodes, lambda found: len(found.candidates), after=(1, 4)) == [1, 1]
    assert together(nodes, lambda found: len(found.candidates), after=(1, 5)) == [0, 0]
    assert together(nodes, lambda found: len(found.candidates), after=(2, 1)) == [0, 0]


def test_rounds_that_a_rewind_gave_up_do_not_count(nodes: list[Path]) -> None:
    assert together(nodes, names, since_round=2) == [[], []]


def test_a_step_after_which_any_rank_was_not_finite_does_not_count(nodes: list[Path]) -> None:
    leave(nodes[0], rank=0, step=6, number=2, healthy=True)
    leave(nodes[1], rank=1, step=6, number=2, healthy=False)
    assert together(nodes, whole_weight) == [expected(5)] * 2


@pytest.mark.parametrize(("unhealthy_from", "there"), [(6, ["5", "4"]), (5, ["4"]), (4, []), (None, ["5", "4"])])
def test_nothing_counts_from_the_first_step_on_that_is_not_healthy(
    nodes: list[Path], unhealthy_from: int | None, there: list[str]
) -> None:
    found = together(nodes, names, unhealthy_from=unhealthy_from)
    assert found == [[f"step-0000000{step} in memory of round 1" for step in there]] * 2


def test_another_life_of_the_job_does_not_count(tmp_path: Path) -> None:
    for rank in range(2):
        leave(tmp_path / "a", rank=rank, step=5, owner="an earlier life")
    assert together([tmp_path / "a"], names) == [[]]


def test_what_a_newer_round_gave_up_does_not_count(nodes: list[Path]) -> None:
    """Round 2 had gone back to step 3, and has taken only one step since: 4 and 5 of round 1 are no past of it."""
    for rank in range(2):
        leave(nodes[rank], rank=rank, step=4, round=2, number=2, parent=3)
    assert together(nodes, names) == [["step-00000004 in memory of round 2"]] * 2


def test_a_newer_round_in_another_world_comes_before_its_past(nodes: list[Path]) -> None:
    leave(nodes[0], rank=0, step=6, round=2, world_size=1, number=2, parent=5)
    found = together(nodes, names)[0]
    assert found == ["step-00000006 in memory of round 2", "step-00000005 in memory of round 1"]


def test_nothing_anywhere_is_no_candidate(tmp_path: Path) -> None:
    assert together([tmp_path / "a", None], names) == [[], []]


def test_a_flipped_bit_is_found_and_its_block_is_had_from_nobody_unverified(nodes: list[Path]) -> None:
    """The copy's hashes were taken when it was made, so they are believed, and the flip is in one of them."""
    for folder in nodes:
        for path in folder.iterdir():
            buffer = SharedBuffer.open(path)
            held = buffer.read()
            if held is not None and held.record.rank == 0 and held.record.step == 5:
                buffer.image[held.record.image_bytes // 2] ^= 1
                wanted = record_of([memoryview(image_of(5, 0, 2)[0])]).blocks[0]
    for error in together(nodes, whole_weight):
        assert isinstance(error, Damaged)
    assert together(nodes, lambda found: found.fetch(wanted)) == [None, None]


def test_a_block_is_had_by_its_hash_from_the_nodes_own_memory(nodes: list[Path]) -> None:
    image, _ = image_of(4, 1, 2)
    wanted = record_of([memoryview(image)]).blocks[0]
    assert together([nodes[0]], lambda found: found.fetch(wanted)) == [image]


def test_an_image_that_no_peer_gives_counts_as_damaged(nodes: list[Path]) -> None:
    """Nobody listens at the address that the node without a copy is told."""
    for path in nodes[0].glob("*.copy"):
        path.unlink()
    error = together(nodes, whole_weight)[0]
    assert isinstance(error, Damaged)
    assert "out of reach" in str(error)


def test_records_that_do_not_add_up_are_no_candidate(tmp_path: Path) -> None:
    leave(tmp_path / "a", rank=0, step=5)
    buffer = leave(tmp_path / "a", rank=1, step=5)
    held = buffer.read()
    assert held is not None
    buffer.begin()
    buffer.complete(msgspec.structs.replace(held.record, entries={}))
    assert together([tmp_path / "a"], names) == [[]]
