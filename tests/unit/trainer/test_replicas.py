"""Replica groups against a network that fails where it is told to. Each group is one rank, and a thread."""

from typing import Any, cast

import msgspec
import pytest
import torch
from groupnet import Faked, Group, Net, Stage, equal, part
from torch import Tensor, nn
from trainer_builders import assignment

from holdfast.api.control import AtTheDoor
from holdfast.api.errors import InvalidInput
from holdfast.api.membership import CollectiveFailed
from holdfast.trainer import OuterStep, Replicas, Run, replicas
from holdfast.trainer.replicas import NobodyHasIt


@pytest.fixture(autouse=True)
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    Faked.net = Net()
    monkeypatch.setattr(replicas, "Across", Faked)
    return Faked.net


def one_that_trains_and_one_at_the_door(
    *, steps: int, outer: OuterStep | None = None
) -> tuple[Group, Group, Stage]:
    """The first waits before its fifth step."""
    one = Group(0, part(2, 0, 1), steps=steps)
    back = Group(7, part(2, None, 1, epoch=2), steps=steps)
    one.outer = back.outer = outer
    one.holds_at = 5
    stage = Stage(one, back)
    stage.wait(lambda: back.said == [AtTheDoor(2)] and one.has_done(4)())
    return one, back, stage


def show_both(one: Group, back: Group) -> None:
    """The round in which both train; then the first goes on."""
    one.stay.go_on(part(3, 0, 2))
    back.stay.go_on(part(3, 1, 2, epoch=2))
    one.gate.set()


def test_groups_begin_alike_and_stay_so_whatever_their_seeds() -> None:
    one, other = Group(0, part(1, 0, 2)), Group(1, part(1, 1, 2))
    assert Stage(one, other).ends() == [6, 6]
    assert equal(one, other)
    assert one.done == other.done == [1, 2, 3, 4, 5, 6]


def test_a_step_is_the_mean_of_the_groups() -> None:
    one, other = Group(0, part(1, 0, 2), steps=1), Group(1, part(1, 1, 2), steps=1)
    grads: list[Tensor] = []
    for each in (one, other):
        each.optimizer.register_step_pre_hook(lambda *_, each=each: grads.append(each.model.weight.grad.clone()))
    assert Stage(one, other).ends() == [1, 1]
    assert torch.equal(grads[0], grads[1])
    torch.manual_seed(0)
    alone = nn.Linear(3, 1)
    for index in range(2):
        values = torch.randn(4, 3, generator=torch.Generator().manual_seed(index))
        alone(values).square().mean().div(2).backward()
    assert torch.allclose(grads[0], alone.weight.grad)


def test_a_group_that_dies_costs_the_other_no_step_and_no_second_pass() -> None:
    one, other = Group(0, part(1, 0, 2)), Group(1, part(1, 1, 2))
    other.dies_at = 4
    stage = Stage(one, other)
    stage.wait(lambda: bool(one.said))
    assert isinstance(one.said[0], CollectiveFailed)
    assert one.said[0].across
    one.stay.go_on(part(2, 0, 1, broke_in=2))
    assert stage.ends()[0] == 6
    assert one.done == [1, 2, 3, 4, 5, 6]
    assert one.passes == 6


def test_a_group_that_comes_back_is_equal_to_its_peers_bit_by_bit() -> None:
    one, back, stage = one_that_trains_and_one_at_the_door(steps=8)
    show_both(one, back)
    assert stage.ends() == [8, 8]
    assert equal(one, back)
    assert back.done == [6, 7, 8], "all hear of it in the fifth step, and change before the sixth"
    assert one.passes == 8


@pytest.mark.parametrize("turn", [3, 4], ids=["in the gradients", "in the counts"])
def test_a_group_that_missed_a_step_of_another_copies_it(net: Net, turn: int) -> None:
    """Of turn 0, the first step has 1 and 2, the second 3 and 4."""
    one, other = Group(0, part(1, 0, 2)), Group(1, part(1, 1, 2))
    net.fails = {(1, 1, turn)}
    stage = Stage(one, other)
    stage.wait(lambda: bool(other.said))
    for index, each in enumerate((one, other)):
        each.stay.go_on(part(2, index, 2, broke_in=2))
    assert stage.ends() == [6, 6]
    assert equal(one, other)
    assert one.done == [1, 2, 3, 4, 5, 6]
    assert sorted(set(other.done)) == other.done


def test_a_copy_that_breaks_is_begun_anew(net: Net) -> None:
    net.copies_left = 3
    one, back, stage = one_that_trains_and_one_at_the_door(steps=8)
    show_both(one, back)
    stage.wait(lambda: any(isinstance(each, CollectiveFailed) for each in back.said))
    one.stay.go_on(part(4, 0, 2, broke_in=4))
    back.stay.go_on(part(4, 1, 2, epoch=2, broke_in=4))
    assert stage.ends() == [8, 8]
    assert equal(one, back)


def test_when_nobody_has_the_state_the_group_fails(net: Net) -> None:
    net.copies_left = 3
    one, back, stage = one_that_trains_and_one_at_the_door(steps=8)
    show_both(one, back)
    stage.wait(lambda: any(isinstance(each, CollectiveFailed) for each in back.said))
    one.stay.end("lost")
    net.gone.add((3, 0))
    back.stay.go_on(part(4, 0, 1, epoch=2, broke_in=4))
    assert isinstance(stage.ends()[1], NobodyHasIt)


def test_one_that_missed_the_last_step_copies_it_from_one_that_has_finished(net: Net) -> None:
    one, other = Group(0, part(1, 0, 2), steps=2), Group(1, part(1, 1, 2), steps=2)
    net.fails = {(1, 1, 4)}
    stage = Stage(one, other)
    stage.wait(lambda: bool(other.said))
    for index, each in enumerate((one, other)):
        each.stay.go_on(part(2, index, 2, broke_in=2))
    assert stage.ends() == [2, 2]
    assert equal(one, other)
    assert (one.done, other.done) == ([1, 2], [1])


def test_without_groups_it_only_counts() -> None:
    alone = Group(0, assignment(round=1, world_size=1))
    assert Stage(alone).ends() == [6]
    assert not alone.said


def test_bad_input_names_what_is_wrong() -> None:
    alone = cast(Run, Group(0, assignment(round=1, world_size=1)))
    model = nn.Linear(1, 1)
    with pytest.raises(InvalidInput, match="step"):
        Replicas(alone, model=model, optimizer=torch.optim.SGD(model.parameters()), step=-1)
    with pytest.raises(InvalidInput, match="model"):
        Replicas(alone, model=nn.ReLU(), optimizer=torch.optim.SGD(model.parameters()))


def alike(step: int, *groups: Group) -> bool:
    first, *others = [each.at_outer[step] for each in groups]
    return all(torch.equal(one, two) for other in others for one, two in zip(first, other, strict=True))


def test_with_outer_steps_groups_are_equal_after_each_and_part_in_between() -> None:
    one, other = Group(0, part(1, 0, 2)), Group(1, part(1, 1, 2))
    one.outer = other.outer = OuterStep(every=3)
    assert Stage(one, other).ends() == [6, 6]
    assert [alike(step, one, other) for step in range(1, 7)] == [False, False, True] * 2


def test_an_outer_step_is_nesterov_momentum_over_the_mean_of_what_groups_changed() -> None:
    one, other = Group(0, part(1, 0, 2), steps=2), Group(1, part(1, 1, 2), steps=2)
    one.outer = other.outer = OuterStep(every=1, learning_rate=0.7, momentum=0.9)
    began = [each.detach().clone() for each in one.model.parameters()]
    before: dict[tuple[int, int], Tensor] = {}
    for group in (one, other):
        group.optimizer.register_step_post_hook(
            lambda *_, group=group: before.setdefault(
                (group.at, len(group.done)), group.model.weight.detach().clone()
            )
        )
    assert Stage(one, other).ends() == [2, 2]
    anchor, momentum = began[0], torch.zeros_like(began[0])
    for step in range(2):
        change = anchor - (before[0, step] + before[1, step]) / 2
        momentum = 0.9 * momentum + change
        anchor = anchor - 0.7 * (change + 0.9 * momentum)
        assert torch.allclose(one.at_outer[step + 1][0], anchor, atol=1e-6)


def test_a_group_that_comes_back_between_outer_steps_is_equal_after_the_next() -> None:
    one, back, stage = one_that_trains_and_one_at_the_door(steps=12, outer=OuterStep(every=4))
    show_both(one, back)
    assert stage.ends() == [12, 12]
    assert alike(12, one, back)
    assert equal(one, back) is False, "what the inner optimizers keep is each group's own"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"every": 0}, "every"),
        ({"every": 1, "learning_rate": 0.0}, "learning_rate"),
        ({"every": 1, "momentum": 1.0}, "momentum"),
    ],
)
def test_an_outer_step_that_cannot_be_is_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        OuterStep(**fields)


def test_fingerprints_between_outer_steps_are_refused_because_groups_differ_there() -> None:
    alone = Group(0, msgspec.structs.replace(assignment(round=1, world_size=1), fingerprint_every=10))
    with pytest.raises(InvalidInput, match="fingerprintEverySteps"):
        Replicas(cast(Run, alone), model=alone.model, optimizer=alone.optimizer, outer=OuterStep(every=4))


def test_between_outer_steps_a_group_is_in_the_newest_round_at_once() -> None:
    one, other = Group(0, part(1, 0, 2), steps=20), Group(1, part(1, 1, 2), steps=20)
    one.outer = other.outer = OuterStep(every=10)
    other.dies_at = 7
    stage = Stage(one, other)
    stage.wait(lambda: (1, 1) in Faked.net.gone)
    one.stay.go_on(part(2, 0, 1, broke_in=2))
    assert stage.ends()[0] == 20
    assert one.stay.assignment.round == 2
    assert one.done == list(range(1, 21))
