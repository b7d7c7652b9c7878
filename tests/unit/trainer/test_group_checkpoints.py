"""Checkpoints of replica groups: one saves, all restore, and what is saved is of the history that goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch
from groupnet import LIMIT_S, Faked, Group, Net, Stage, equal, part
from torch import Tensor

from holdfast.api.control import Assignment, AtTheDoor
from holdfast.api.errors import InvalidInput
from holdfast.api.learningrate import LearningRateCut
from holdfast.api.round import Restore, Tier
from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.checkpoint.commit.discovery import discover
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.save.persister import SavePoint
from holdfast.checkpoint.storage.local import LocalStorage
from holdfast.trainer import OuterStep, Replicas, Run, replicas


@pytest.fixture(autouse=True)
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    Faked.net = Net()
    monkeypatch.setattr(replicas, "Across", Faked)
    return Faked.net


class Saving(Group):
    """A group with a Checkpointer; what the run is told of checkpoints it writes down."""

    def __init__(self, at: int, first: Assignment, folder: Path, *, steps: int = 6, every: int = 2, **more: Any):
        restore = first.restore if first.restore.tier is not Tier.NONE else Restore(Tier.CHECKPOINT)
        restore = msgspec.structs.replace(restore, uri=folder.as_uri(), owner="life")
        super().__init__(at, msgspec.structs.replace(first, restore=restore), steps=steps)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.alone = Standalone()
        self.commits: list[tuple[int, int]] = []
        self.restores: list[int | None] = []
        self.batches: list[tuple[int, int]] = []
        self.every, self.more = every, more
        self.reached: Callable[[SavePoint], object] = lambda point: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["alone"], name)

    def is_current(self) -> bool:
        return not self.stay.is_over

    def committed(self, step: int, uri: str, /, *, round: int, **rest: Any) -> None:
        self.commits.append((step, round))

    def restored(self, step: int | None, skipped: tuple[str, ...], /, **rest: Any) -> None:
        self.restores.append(step)

    def replicas(self) -> Replicas:
        self.saves = Checkpointer(
            cast(Run, self),
            model=self.model,
            optimizer=self.optimizer,
            every_steps=self.every,
            reached=lambda point: self.reached(point),
            **self.more,
        )
        return Replicas.resumed(cast(Run, self), self.saves, until=self.steps, outer=self.outer)

    def before(self, step: int) -> None:
        self.batches.append((step, self.saves.batch))

    def completed(self, step: int) -> None:
        self.saves.completed(step)


def manifests(folder: Path) -> dict[int, Manifest]:
    return {each.step: each.manifest for each in discover(LocalStorage(folder))[0]}


def train(*groups: Group) -> None:
    Faked.net = Net()
    assert Stage(*groups).ends() == [groups[0].steps] * len(groups)


def pair(folder: Path, *, round: int = 1, seed: int = 0, steps: int = 6, **more: Any) -> tuple[Saving, Saving]:
    """Two groups that are formed in that round, each of a seed of its own."""
    one, other = (
        Saving(seed + at, part(round, at, 2, epoch=round), folder, steps=steps, **more) for at in range(2)
    )
    return one, other


def test_when_all_groups_are_lost_training_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    undisturbed = pair(tmp_path / "whole", steps=8)
    train(*undisturbed)
    one, other = pair(tmp_path / "cut", steps=5, every=2)
    train(one, other)
    assert [step for step, _ in one.commits] == [2, 4, 5]
    assert not other.commits, "one group saves for all"
    again = pair(tmp_path / "cut", round=5, seed=20, steps=8)
    train(*again)
    assert [each.restores for each in again] == [[5], [5]]
    assert equal(*undisturbed, *again)
    assert manifests(tmp_path / "cut")[8].parent == 5


def test_a_checkpoint_restores_into_another_number_of_groups(tmp_path: Path) -> None:
    train(*pair(tmp_path, steps=4))
    three = [Saving(30 + at, part(7, at, 3, epoch=7), tmp_path, steps=6) for at in range(3)]
    train(*three)
    assert equal(*three)
    assert [each.batches for each in three] == [[(5, 5), (6, 6)]] * 3, "the number of a batch does not change"
    assert manifests(tmp_path)[6].batches == 4 * 2 + 2 * 3, "over all ranks, by one rank that saved"


def test_a_group_takes_over_from_one_that_saved_and_is_lost(tmp_path: Path) -> None:
    one, other = pair(tmp_path, steps=8)
    one.dies_at = 6
    one.completed = lambda step: (  # type: ignore[method-assign]
        one.saves.completed(step),
        one.saves._save.wait(),  # type: ignore[union-attr]
    )
    stage = Stage(one, other)
    stage.wait(lambda: bool(other.said))
    other.stay.go_on(part(2, 0, 1, broke_in=2))
    assert stage.ends()[1] == 8
    assert one.commits == [(2, 1), (4, 1)]
    assert other.commits == [(6, 2), (8, 2)]
    found = manifests(tmp_path)
    assert {step: (each.round, each.parent) for step, each in found.items()} == {
        4: (1, None),
        6: (2, 5),
        8: (2, 5),
    }
    # What was left of the one before cannot write there any more.
    one.saves._save.begin(step=7, batches=7)  # type: ignore[union-attr]
    one.saves._save._thread.join(LIMIT_S)  # type: ignore[union-attr]
    assert 7 not in manifests(tmp_path)


def test_the_last_step_is_saved_also_when_the_group_that_saves_is_lost_meanwhile(tmp_path: Path) -> None:
    one, other = pair(tmp_path, steps=5, every=100)

    def dies(point: SavePoint) -> None:
        if point is SavePoint.BEFORE_RENAME:
            Faked.net.gone.add((1, 0))
            one.stay.end("its worker died")
            raise OSError("its worker died")

    one.reached = dies
    stage = Stage(one, other)
    stage.wait(lambda: bool(other.said))
    other.stay.go_on(part(2, 0, 1, broke_in=2))
    assert stage.ends()[1] == 5
    assert other.commits == [(5, 2)]
    assert list(manifests(tmp_path)) == [5]


def test_a_group_that_comes_back_restores_nothing_and_knows_which_batch_is_next(tmp_path: Path) -> None:
    cut = LearningRateCut(0.5, 0, until=100)
    directive = Restore(Tier.CHECKPOINT, skip_batches=3, learning_rate_cuts=(cut,))
    first = msgspec.structs.replace(part(2, 0, 1), restore=directive)
    late = msgspec.structs.replace(
        part(2, None, 1, epoch=2), restore=Restore(Tier.PEER, learning_rate_cuts=(cut,))
    )
    one = Saving(0, first, tmp_path, steps=9)
    back = Saving(7, late, tmp_path, steps=9)
    one.holds_at = 5
    stage = Stage(one, back)
    stage.wait(lambda: back.said == [AtTheDoor(2)] and one.has_done(4)())
    for group, later in ((one, part(3, 0, 2)), (back, part(3, 1, 2, epoch=2))):
        group.stay.go_on(msgspec.structs.replace(later, restore=group.assignment.restore))
    one.gate.set()
    assert stage.ends() == [9, 9]
    assert equal(one, back)
    assert back.restores == []
    assert one.batches == [(step, step + 3) for step in range(1, 10)]
    assert back.batches[1:] == [(step, step + 3) for step in range(7, 10)]
    for group in (one, back):
        assert group.optimizer.param_groups[0]["lr"] == 0.05


def test_outer_steps_go_on_with_their_momentum_after_a_restart(tmp_path: Path) -> None:
    def outer(*groups: Saving) -> None:
        for each in groups:
            each.outer = OuterStep(every=2)
            each.optimizer = torch.optim.SGD(each.model.parameters(), lr=0.1)  # keeps nothing of its own
        train(*groups)

    undisturbed, cut = pair(tmp_path / "whole", steps=8), pair(tmp_path / "cut", steps=4)
    outer(*undisturbed)
    outer(*cut)
    again = pair(tmp_path / "cut", round=5, seed=20, steps=8)
    outer(*again)
    assert equal(*undisturbed, *again)


@pytest.mark.parametrize("steps", [4, 5], ids=["an outer step", "behind one"])
def test_groups_end_equal_with_outer_steps_also_where_one_missed_the_last(
    net: Net, steps: int, tmp_path: Path
) -> None:
    """Of turn 0, the outer step after 2 has turns 1 and 2, that after 4 has 3 and 4."""
    one, other = pair(tmp_path, steps=steps, every=100)
    one.outer = other.outer = OuterStep(every=2)
    net.fails = {(1, 1, 4)}
    stage = Stage(one, other)
    stage.wait(lambda: bool(other.said))
    for index, each in enumerate((one, other)):
        each.stay.go_on(part(2, index, 2, broke_in=2))
    assert stage.ends() == [steps, steps]
    assert equal(one, other)
    assert manifests(tmp_path)[steps].parent is None


def test_averaged_weights_and_a_schedule_come_back_with_a_group(tmp_path: Path) -> None:
    class Averaged:
        def __init__(self) -> None:
            self.kept = torch.zeros(3)

        def state_dict(self) -> dict[str, Tensor]:
            return {"kept": self.kept}

        def load_state_dict(self, state: dict[str, Tensor]) -> None:
            self.kept = state["kept"].clone()

    one = Saving(0, part(2, 0, 1), tmp_path, steps=9, extra={"averaged": Averaged()})
    late = msgspec.structs.replace(part(2, None, 1, epoch=2), restore=Restore(Tier.PEER))
    back = Saving(7, late, tmp_path, steps=9, extra={"averaged": Averaged()})
    for each in (one, back):
        each.more["scheduler"] = torch.optim.lr_scheduler.StepLR(each.optimizer, 2)
        each.before = lambda step, each=each: (  # type: ignore[method-assign]
            each.more["scheduler"].step() if step > 1 else None
        )
    one.more["extra"]["averaged"].kept += 2
    one.holds_at = 5
    stage = Stage(one, back)
    stage.wait(lambda: back.said == [AtTheDoor(2)] and one.has_done(4)())
    one.stay.go_on(part(3, 0, 2))
    back.stay.go_on(part(3, 1, 2, epoch=2))
    one.gate.set()
    assert stage.ends() == [9, 9]
    assert torch.equal(back.more["extra"]["averaged"].kept, torch.full((3,), 2.0))
    assert back.more["scheduler"].last_epoch == one.more["scheduler"].last_epoch
    assert equal(one, back)


def test_what_groups_cannot_have_is_refused(tmp_path: Path) -> None:
    class Loader:
        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    group = Saving(0, part(1, 0, 1), tmp_path, data=Loader())
    with pytest.raises(InvalidInput, match="counts_globally"):
        group.replicas()
    with pytest.raises(InvalidInput, match=r"Replicas\.resumed"):
        next(group.saves.steps([1, 2]))
    with pytest.raises(InvalidInput, match=r"only Checkpointer\.steps"):
        Saving(0, part(1, 0, 1), tmp_path, equivalence=lambda batch: 0.0).replicas()
    whole = Saving(0, part(1, 0, 1), tmp_path)
    whole.replicas()
    with pytest.raises(InvalidInput, match="the next one is 1"):
        whole.saves.completed(2)


def test_a_loop_that_counts_by_itself_needs_no_groups(tmp_path: Path) -> None:
    for steps, began in ((3, 0), (6, 3)):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        saves = Checkpointer(Standalone(tmp_path.as_uri()), model=model, optimizer=optimizer, every_steps=100)
        step = saves.resume(until=steps)
        assert (step, saves.batch) == (began, began + 1)
        for number in range(step + 1, steps + 1):
            saves.completed(number)
        saves.finish()
        saves.close()
    assert sorted(manifests(tmp_path)) == [3, 6]
