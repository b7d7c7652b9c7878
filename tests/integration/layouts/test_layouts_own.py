"""What ranks hold under one name and in different content is saved as each has it, and restored to each."""

import datetime
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from layouts_own import KINDS, Course, Net, train
from layouts_troupe import Troupe
from torch import nn

from holdfast.api.errors import InvalidInput
from holdfast.checkpoint import Checkpointer, Standalone

RANKS = 2


@pytest.mark.parametrize("kind", KINDS)
def test_each_rank_goes_on_from_what_it_held_itself(kind: str, troupe: Troupe, tmp_path: Path) -> None:
    whole = troupe.play(train, Course(kind, tmp_path / "whole", 8), ranks=RANKS)
    before = troupe.play(train, Course(kind, tmp_path / "cut", 4), ranks=RANKS)
    after = troupe.play(train, Course(kind, tmp_path / "cut", 8), ranks=RANKS)
    assert before[0].ended != before[1].ended
    for rank in range(RANKS):
        assert after[rank].step == 4
        assert after[rank].began == before[rank].ended
        assert after[rank].ended == whole[rank].ended
        assert before[rank].losses + after[rank].losses == whole[rank].losses


@pytest.mark.parametrize("kind", ["own_buffers", "plateau", "rows"])
def test_a_snapshot_in_memory_holds_each_ranks_own(kind: str, troupe: Troupe, tmp_path: Path) -> None:
    before = troupe.play(train, Course(kind, tmp_path, 4, memory=True), ranks=RANKS)
    after = troupe.play(train, Course(kind, tmp_path, 6, memory=True), ranks=RANKS)
    for rank in range(RANKS):
        assert after[rank].step == 4
        assert after[rank].began == before[rank].ended


def test_a_snapshot_of_replicas_that_were_none_any_more_is_not_restored(troupe: Troupe, tmp_path: Path) -> None:
    """At steps 1, 2, 4 and 8 the ranks see that their counts are equal; after step 9 those are not."""
    before = troupe.play(train, Course("broadcast_buffers", tmp_path, 9, memory=True, late=8), ranks=RANKS)
    assert before[0].ended["model.module.seen"] != before[1].ended["model.module.seen"]
    after = troupe.play(train, Course("broadcast_buffers", tmp_path, 10, memory=True, late=8), ranks=RANKS)
    assert [each.step for each in after] == [8, 8]
    assert [each.began["model.module.seen"][2] for each in after] == [0, 0]


def test_more_ranks_follow_those_that_saved_and_fewer_take_the_first(troupe: Troupe, tmp_path: Path) -> None:
    before = troupe.play(train, Course("own_buffers", tmp_path, 4), ranks=RANKS)
    more = troupe.play(train, Course("own_buffers", tmp_path, 4), ranks=3)
    fewer = troupe.play(train, Course("own_buffers", tmp_path, 4), ranks=1)
    means = [each.ended["model.module.body.1.running_mean"] for each in before]
    assert [each.began["model.module.body.1.running_mean"] for each in more] == [means[0], means[1], means[0]]
    assert [each.began["model.module.body.1.running_mean"] for each in fewer] == [means[0]]


def test_what_only_one_rank_had_is_in_another_world_that_of_the_rank_it_follows(
    troupe: Troupe, tmp_path: Path
) -> None:
    before = troupe.play(train, Course("average_on_one", tmp_path, 4), ranks=RANKS)
    more = troupe.play(train, Course("average_on_one", tmp_path, 4), ranks=3)
    mean = "extra.kept.mean"
    assert [each.began.get(mean) for each in more] == [before[0].ended[mean], None, before[0].ended[mean]]


@pytest.mark.parametrize("ranks", [1, 3])
def test_in_another_world_every_rank_has_the_moments_that_any_had(
    ranks: int, troupe: Troupe, tmp_path: Path
) -> None:
    before = troupe.play(train, Course("lazy_moments", tmp_path, 4), ranks=RANKS)
    after = troupe.play(train, Course("lazy_moments", tmp_path, 4), ranks=ranks)
    last = f"optimizer.{len(list(nn.Linear(1, 1).parameters())) + 1}.exp_avg"
    assert last not in before[0].ended
    assert [each.began[last] for each in after] == [before[1].ended[last]] * ranks


def test_rows_of_a_sharded_parameter_are_refused_in_another_world(troupe: Troupe, tmp_path: Path) -> None:
    troupe.play(train, Course("rows", tmp_path, 4), ranks=RANKS)
    with pytest.raises(AssertionError, match=r"Unfit.*each of 2 ranks had its own.*Restore on 2 ranks"):
        troupe.play(train, Course("rows", tmp_path, 8), ranks=3)


def test_stock_torch_loads_what_one_rank_held(troupe: Troupe, tmp_path: Path) -> None:
    before = troupe.play(train, Course("own_buffers", tmp_path, 4), ranks=RANKS)
    state = {"model": Net().state_dict()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Stock torch's own.
        dcp.load(state, checkpoint_id=tmp_path / "step-00000004", no_dist=True)
    found = {f"model.module.{name}": each.tolist() for name, each in state["model"].items()}
    assert found == {name: before[0].ended[name][2] for name in found}


class Stubborn:
    """Its state needs code to be loaded."""

    def state_dict(self) -> dict[str, object]:
        return {"self": Stubborn}

    def load_state_dict(self, state: dict[str, object]) -> None:
        pass


class Unpicklable(Stubborn):
    def state_dict(self) -> dict[str, object]:
        return {"key": lambda: None}


class Dated(Stubborn):
    def state_dict(self) -> dict[str, object]:
        return {"by day": {datetime.date(2026, 11, 29): torch.ones(1)}}


def begin(given: tuple[Path, str]) -> str:
    """What is said before the first step."""
    folder, case = given
    model = nn.Linear(2, 2)
    extra = {"stubborn": Stubborn(), "unpicklable": Unpicklable(), "dated": Dated()}
    checkpointer = Checkpointer(
        Standalone(str(folder)),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        extra={case: extra[case]} if dist.get_rank() == 1 else {},
    )
    try:
        checkpointer.resume(until=3)
    except InvalidInput as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("stubborn", "extra.stubborn.self"),
        ("unpicklable", "extra.unpicklable.key"),
        ("dated", "extra.dated.by day"),
    ],
)
def test_what_no_save_could_store_is_refused_before_the_first_step(
    case: str, named: str, troupe: Troupe, tmp_path: Path
) -> None:
    said = troupe.play(begin, (tmp_path, case), ranks=RANKS)
    assert said[0] == said[1]
    assert named in said[0]
