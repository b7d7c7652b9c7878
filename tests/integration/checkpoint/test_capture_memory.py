"""Snapshots in the node's memory, taken and restored by a training loop of one rank."""

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from checkpoint_solo import NEWEST, Witness
from msgspec import structs
from patience import patient

from holdfast.api.memory import MemoryOrder, NodeMemory
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Follows, Restore, Tier
from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.capture.capture import estimated_bytes
from holdfast.checkpoint.format.manifest import FileRecord
from holdfast.checkpoint.memory.sharedbuffer import HeldSnapshot, SharedBuffer, hashes
from holdfast.checkpoint.save.persister import SavePoint
from holdfast.checkpoint.storage.local import LocalStorage

MEMORY = Restore(tier=Tier.MEMORY)


class Remembering(Witness):
    """A run of one rank with the node's memory in a folder."""

    def __init__(
        self, folder: Path, order: MemoryOrder, *, round: int, restore: Restore, **told: int | None
    ) -> None:
        super().__init__(round=round, restore=restore)
        memory = NodeMemory(order=order, folder=str(folder), server="")
        self.assignment = structs.replace(self.assignment, memory=memory, **told)
        self.snapshots: list[int] = []
        self.tiers: list[Tier] = []
        self.healed: list[tuple[str, ...]] = []
        self.times: list[tuple[float, float]] = []

    def snapshotted(self, step: int, /) -> None:
        self.snapshots.append(step)

    def committed(
        self, step: int, uri: str, /, *, round: int, wanted: int | None, stall_s: float, took_s: float
    ) -> None:
        super().committed(step, uri, round=round, wanted=wanted, stall_s=stall_s, took_s=took_s)
        self.times.append((stall_s, took_s))

    def restored(
        self,
        step: int | None,
        skipped: tuple[str, ...],
        /,
        *,
        tier: Tier,
        healed: tuple[str, ...],
        follows: tuple[Follows, ...],
        until: int | None,
    ) -> None:
        super().restored(step, skipped, tier=tier, healed=healed, follows=follows, until=until)
        self.tiers.append(tier)
        self.healed.append(healed)


@dataclass
class Loop:
    """Trains in `folder`, which holds its memory and, unless `is_only_memory`, its checkpoints."""

    folder: Path
    round: int = 1
    restore: Restore = MEMORY
    order: MemoryOrder = field(default_factory=lambda: MemoryOrder(every_steps=1, since_round=1))
    every_steps: int | None = None
    keep: int | None = None
    save_every: int | None = None
    is_only_memory: bool = False
    width: int = 4

    def __post_init__(self) -> None:
        memory = self.folder / "memory"
        self.run = Remembering(
            memory, self.order, round=self.round, restore=self.restore, keep=self.keep, save_every=self.save_every
        )
        torch.manual_seed(0)
        self.model = torch.nn.Linear(self.width, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.checkpointer = Checkpointer(
            self.run,
            model=self.model,
            optimizer=self.optimizer,
            uri="" if self.is_only_memory else str(self.folder / "disk"),
            every_steps=self.every_steps,
            reached=self.reach,
        )
        self.points: list[tuple[SavePoint, list[int]]] = []
        self.after: list[list[torch.Tensor]] = []
        """What each step left."""

    def reach(self, point: SavePoint) -> None:
        self.points.append((point, [held.record.step for held in self.held()]))

    def train(self, steps: int) -> "Loop":
        """So many steps, then the process is gone: nothing is finished or closed."""
        loop = self.checkpointer.steps(torch.ones(100, 1, self.width))
        for _ in range(steps):
            _, batch = next(loop)
            self.model(batch).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.after.append(self.digest)
        next(loop)  # Completes the last one.
        return self

    def held(self) -> list[HeldSnapshot]:
        """The complete snapshots in memory, oldest first."""
        buffers = [SharedBuffer.open(path) for path in sorted((self.folder / "memory").glob("*.own"))]
        found = [held for buffer in buffers if (held := buffer.read()) is not None]
        return sorted(found, key=lambda held: held.record.age)

    @property
    def digest(self) -> list[torch.Tensor]:
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        return [tensor.detach().clone() for tensor in (*self.model.parameters(), *states)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def test_a_round_goes_on_from_the_newest_snapshot_in_memory(tmp_path: Path) -> None:
    first = Loop(tmp_path, every_steps=2).train(5)
    assert first.run.snapshots == [1, 2, 3, 4, 5]
    again = Loop(tmp_path, round=2)
    next(again.checkpointer.steps(torch.ones(100, 1, 4)))
    assert again.run.restores == [(5, ())]
    assert again.run.tiers == [Tier.MEMORY]
    assert same(again.digest, first.digest)


def test_a_last_step_that_is_only_in_memory_is_still_saved(tmp_path: Path) -> None:
    first = Loop(tmp_path).train(3)
    assert first.run.commits == [], "it was gone before its last save"
    again = Loop(tmp_path, round=2)
    assert list(again.checkpointer.steps(torch.ones(100, 1, 4), until=3)) == []
    assert again.run.tiers == [Tier.MEMORY]
    assert [step for step, _, _ in again.run.commits] == [3]
    once_more = Loop(tmp_path, round=3)
    assert list(once_more.checkpointer.steps(torch.ones(100, 1, 4), until=3)) == []
    assert (once_more.run.tiers, once_more.run.commits) == ([Tier.CHECKPOINT], [])
    assert same(once_more.digest, first.digest)


def test_batches_are_skipped_and_the_learning_rate_is_scaled_once(tmp_path: Path) -> None:
    Loop(tmp_path, every_steps=2).train(2).checkpointer.close()
    told = Restore(tier=Tier.CHECKPOINT, step=2, skip_batches=7, learning_rate_scale=0.5)
    order = MemoryOrder(every_steps=1, since_round=2)
    back = Loop(tmp_path, round=2, restore=told, order=order).train(2)
    assert (back.run.snapshots, back.held()[-1].record.batches) == ([3, 4], 11)
    again = Loop(tmp_path, round=3, restore=structs.replace(told, tier=Tier.MEMORY), order=order).train(1)
    assert (again.run.restores, again.run.tiers) == ([(4, ())], [Tier.MEMORY])
    assert again.held()[-1].record.batches == 12
    assert again.optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("tier", [Tier.CHECKPOINT, Tier.MEMORY])
def test_a_damaged_checkpoint_is_healed_from_memory_even_where_memory_may_not_be_restored(
    tier: Tier, tmp_path: Path
) -> None:
    first = Loop(tmp_path, every_steps=2).train(2)
    first.checkpointer.close()
    for path in (tmp_path / "memory").glob("*.own"):  # As the node's transfer process does.
        buffer = SharedBuffer.open(path)
        if (held := buffer.read()) is not None:
            buffer.seal(held.generation, tuple(hashes(buffer, held.record.image_bytes)))
    file = tmp_path / "disk" / "step-00000002" / "__0_0.distcp"
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    again = Loop(tmp_path, round=2, restore=Restore(tier=tier))
    next(again.checkpointer.steps(torch.ones(100, 1, 4)))
    assert again.run.restores == [(2, ())]
    assert (again.run.tiers, again.run.healed) == ([Tier.CHECKPOINT], [("step-00000002/__0_0.distcp at 0",)])
    assert same(again.digest, first.digest)


def test_without_any_storage_memory_is_enough(tmp_path: Path) -> None:
    first = Loop(tmp_path, is_only_memory=True).train(3)
    again = Loop(tmp_path, round=2, is_only_memory=True).train(1)
    assert again.run.restores == [(3, ())]
    assert again.run.snapshots == [4]
    straight = Loop(tmp_path / "other", is_only_memory=True).train(4)
    assert same(again.digest, straight.digest)
    assert first.run.commits == []


def test_snapshots_are_taken_as_often_as_the_order_says(tmp_path: Path) -> None:
    loop = Loop(tmp_path, order=MemoryOrder(every_steps=3, since_round=1)).train(7)
    assert loop.run.snapshots == [3, 6]
    record = loop.held()[-1].record
    assert (record.owner, record.round, record.rank, record.step, record.batches) == ("solo", 1, 0, 6, 6)
    assert record.file == "__0_0.distcp"


def test_a_save_is_a_snapshot_as_well_and_is_left_alone_until_it_is_stored(tmp_path: Path) -> None:
    loop = Loop(tmp_path, order=MemoryOrder(every_steps=100, since_round=1), every_steps=2).train(6)
    loop.checkpointer.close()
    assert loop.run.snapshots == [2, 4, 6]
    written = [steps for point, steps in loop.points if point is SavePoint.FILE_WRITTEN]
    assert [steps[-1] for steps in written] == [2, 4, 6]
    assert [step for step, _, _ in loop.run.commits] == [2, 4, 6]
    assert all(0 < stall_s < took_s for stall_s, took_s in loop.run.times)


def test_memory_is_given_back_after_the_save_of_parameters_that_are_not_finite(tmp_path: Path) -> None:
    loop = Loop(tmp_path, every_steps=1)
    with torch.no_grad():
        loop.model.weight.fill_(math.nan)
    loop.train(8).checkpointer.close()
    assert loop.run.snapshots == [1, 2, 3, 4, 5, 6, 7, 8]


class SlowDisk(LocalStorage):
    """Is told to write the first tensors and begins when it may."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_told, self.may_write = threading.Event(), threading.Event()

    def write(self, name: str, parts: Sequence[memoryview]) -> FileRecord:
        if name.endswith(".distcp"):
            self.is_told.set()
            self.may_write.wait(patient(30))
        return super().write(name, parts)


@dataclass
class Waiting(Loop):
    """Its first save lasts until training has asked four times whether its round still runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.now: Phase | None = None
        self.seen: list[Phase | None] = []
        self.checkpointer.storage = self.disk = SlowDisk(self.folder / "disk")
        self.run.phase, self.run.check = self.enter, self.check  # type: ignore[method-assign]

    def enter(self, phase: Phase) -> None:
        if phase is Phase.FORWARD and self.run.snapshots:
            self.disk.is_told.wait(patient(30))
        self.now = phase

    def check(self) -> None:
        if self.disk.is_told.is_set() and not self.disk.may_write.is_set():
            self.seen.append(self.now)
            if len(self.seen) == 4:
                self.disk.may_write.set()


def test_training_that_waits_for_a_save_says_so_and_counts_it(tmp_path: Path) -> None:
    loop = Waiting(tmp_path, every_steps=1).train(2)
    loop.checkpointer.close()
    assert loop.seen[-1] is Phase.CHECKPOINT
    assert loop.run.times[1][0] > 0.05, "it looked up twice at least"


def test_what_is_written_while_training_goes_on_is_what_was_saved_bit_for_bit(tmp_path: Path) -> None:
    """The disk begins with step 1 when step 2 is made and waits to be saved."""
    loop = Waiting(tmp_path, every_steps=1).train(3)
    loop.checkpointer.close()
    assert loop.seen[-1] is Phase.CHECKPOINT
    assert len(loop.after) == 3
    for step, after in reversed([*enumerate(loop.after, 1)]):
        again = Loop(tmp_path, round=2, restore=Restore(tier=Tier.CHECKPOINT, step=step))
        next(again.checkpointer.steps(torch.ones(100, 1, 4)))
        assert (again.run.restores, again.run.tiers) == ([(step, ())], [Tier.CHECKPOINT])
        assert again.run.healed == [()]
        assert same(again.digest, after)


def test_a_snapshot_is_left_out_while_somebody_reads_every_arena(tmp_path: Path) -> None:
    loop = Loop(tmp_path, order=MemoryOrder(every_steps=1, since_round=1, keepers=("127.0.0.1:1",)))
    for _, batch in loop.checkpointer.steps(torch.ones(100, 1, 4), until=5):
        loop.model(batch).sum().backward()
        loop.optimizer.step()
        for path in (tmp_path / "memory").glob("*.own"):
            buffer = SharedBuffer.open(path)
            if buffer.generation:  # Others are made ready in the background, some time.
                buffer.hold(buffer.generation, until_s=time.monotonic() + 3600)
    assert loop.run.snapshots[:3] == [1, 2, 3]
    assert 4 not in loop.run.snapshots, "a further buffer is made meanwhile, but not waited for"
    assert [held.record.step for held in loop.held()][:3] == [1, 2, 3]
    assert loop.held()[0].record.keepers == ("127.0.0.1:1",)


def test_what_changes_its_shape_is_left_out_until_the_ranks_agree_again(tmp_path: Path) -> None:
    loop = Loop(tmp_path, every_steps=4)
    steps = loop.checkpointer.steps(torch.ones(100, 1, 4))
    for step, batch in steps:
        if step == 6:
            break
        loop.model(batch).sum().backward()
        loop.optimizer.step()
        if step == 2:
            loop.model.register_buffer("late", torch.ones(3))
    assert loop.run.snapshots == [1, 4, 5], "step 4 is saved, which has the ranks agree"


def test_memory_that_cannot_be_had_costs_snapshots_and_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "memory").write_text("in the way")
    with caplog.at_level(logging.WARNING):
        loop = Loop(tmp_path, every_steps=2).train(4)
        loop.checkpointer.close()
    assert loop.run.snapshots == []
    assert [step for step, _, _ in loop.run.commits] == [2, 4]
    assert [record.message for record in caplog.records if "no snapshots in memory" in record.message]


def test_the_job_says_how_many_checkpoints_stay_where_the_script_does_not(tmp_path: Path) -> None:
    loop = Loop(tmp_path, every_steps=1, keep=1).train(4)
    loop.checkpointer.close()
    assert [path.name for path in (tmp_path / "disk").glob("step-*")] == ["step-00000004"]


@pytest.mark.parametrize(("every_steps", "steps"), [(None, [3, 6]), (2, [2, 3, 4, 6])])
def test_the_steps_that_the_job_says_are_saved_beside_those_of_the_script(
    every_steps: int | None, steps: list[int], tmp_path: Path
) -> None:
    loop = Loop(tmp_path, every_steps=every_steps, save_every=3).train(7)
    loop.checkpointer.close()
    assert [step for step, _, _ in loop.run.commits] == steps


def test_snapshots_that_a_rewind_gave_up_are_not_restored(tmp_path: Path) -> None:
    Loop(tmp_path, every_steps=2).train(3).checkpointer.close()
    order = MemoryOrder(every_steps=1, since_round=2)
    again = Loop(tmp_path, round=2, order=order, restore=structs.replace(NEWEST, tier=Tier.MEMORY))
    next(again.checkpointer.steps(torch.ones(100, 1, 4)))
    assert (again.run.restores, again.run.tiers) == ([(2, ())], [Tier.CHECKPOINT])


def test_the_estimate_of_a_first_snapshot_counts_the_states_an_optimizer_will_make() -> None:
    model = torch.nn.Linear(100, 10, bias=False)
    model.register_parameter("frozen", torch.nn.Parameter(torch.zeros(10), requires_grad=False))
    adam = torch.optim.AdamW(model.parameters())
    assert estimated_bytes(model, adam, world_size=1) == 3 * 4000 + 40
    assert estimated_bytes(model, torch.optim.SGD(model.parameters(), lr=1), world_size=1) == 4040
    assert estimated_bytes(model, torch.optim.SGD(model.parameters(), lr=1, momentum=0.9), world_size=2) == 4020
