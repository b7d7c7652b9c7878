"""What replica groups average, and how: buckets sent early, kinds of parameters, copies of what is not alike."""

import threading
from functools import partial
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from groupnet import Faked, Group, Net, Stage, equal, part
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from holdfast.api.control import AtTheDoor
from holdfast.api.errors import InvalidInput
from holdfast.trainer import Replicas, replicas
from holdfast.trainer.averaging import Average


@pytest.fixture(autouse=True)
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    Faked.net = Net()
    monkeypatch.setattr(replicas, "Across", Faked)
    monkeypatch.setattr(replicas, "Average", partial(Average, bucket_bytes=16))  # several buckets of a tiny model
    return Faked.net


def deep(group: Group, dtype: torch.dtype = torch.float32) -> Group:
    group.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)
    group.optimizer = torch.optim.AdamW(group.model.parameters(), lr=0.1)
    return group


def pair(*, steps: int = 6, overlaps: bool = False) -> tuple[Group, Group]:
    one, other = (deep(Group(at, part(1, at, 2), steps=steps)) for at in range(2))
    one.overlaps = other.overlaps = overlaps
    return one, other


def weights(group: Group) -> list[Tensor]:
    return [each.detach().clone() for each in group.model.parameters()]


def test_what_is_sent_while_the_backward_pass_goes_on_is_averaged_to_the_same_bits(net: Net) -> None:
    plain = pair()
    assert Stage(*plain).ends() == [6, 6]
    Faked.net = Net()
    early = pair(overlaps=True)
    sent: list[int] = []

    def backward(mine: Replicas) -> None:
        first = next(iter(early[0].model.parameters()))
        assert mine._across is not None
        before = mine._across._turn  # type: ignore[attr-defined]
        hook = first.register_hook(lambda _: sent.append(mine._across._turn - before))  # type: ignore[union-attr]
        Group.backward(early[0], mine)
        hook.remove()

    early[0].backward = backward  # type: ignore[method-assign]
    assert Stage(*early).ends() == [6, 6]
    assert equal(*plain, *early)
    assert len(sent) == 6
    assert min(sent) >= 1, "buckets go before the backward pass has come to the first parameter"


def test_a_group_that_dies_in_its_backward_pass_costs_the_other_no_second_one(net: Net) -> None:
    one, other = pair(overlaps=True)
    other.dies_in_backward_of = 4
    stage = Stage(one, other)
    stage.wait(lambda: bool(one.said))
    one.stay.go_on(part(2, 0, 1, broke_in=2))
    assert stage.ends()[0] == 6
    assert one.done == [1, 2, 3, 4, 5, 6]
    assert one.passes == 6


def test_a_gradient_that_grows_after_it_was_sent_is_averaged_anew() -> None:
    plain, early = pair(), pair(overlaps=True)
    for group in (*plain, *early):

        def twice(mine: Replicas, group: Group = group) -> None:
            Group.backward(group, mine)
            Group.backward(group, mine)

        group.backward = twice  # type: ignore[method-assign]
    assert Stage(*plain).ends() == [6, 6]
    Faked.net = Net()
    assert Stage(*early).ends() == [6, 6]
    assert equal(*plain, *early)


def test_a_parameter_that_begins_to_train_does_so_in_a_group_that_was_away(net: Net) -> None:
    one = deep(Group(0, part(2, 0, 1), steps=9))
    back = deep(Group(7, part(2, None, 1, epoch=2), steps=9))
    for group in (one, back):
        next(iter(group.model.parameters())).requires_grad = False

    def unfreeze(step: int) -> None:
        if step == 3:
            next(iter(one.model.parameters())).requires_grad = True

    one.before = unfreeze  # type: ignore[method-assign]
    one.holds_at = 5
    stage = Stage(one, back)
    stage.wait(lambda: back.said == [AtTheDoor(2)] and one.has_done(4)())
    one.stay.go_on(part(3, 0, 2))
    back.stay.go_on(part(3, 1, 2, epoch=2))
    one.gate.set()
    assert stage.ends() == [9, 9]
    assert all(each.requires_grad for each in back.model.parameters())
    assert equal(one, back)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_mean_is_as_exact_as_the_parameters_need(dtype: torch.dtype) -> None:
    one, other = (deep(Group(at, part(1, at, 2), steps=1), dtype) for at in range(2))
    seen: list[Tensor] = []
    given: dict[int, Tensor] = {}
    for group in (one, other):

        def backward(mine: Replicas, group: Group = group) -> None:
            weight = cast(nn.Linear, cast(nn.Sequential, group.model)[4]).weight
            (weight * (1 + 1e-12 * (1 + mine.index))).sum().backward()
            assert weight.grad is not None
            given[mine.index] = weight.grad.clone()

        group.backward = backward  # type: ignore[method-assign]
        group.optimizer.register_step_pre_hook(
            lambda *_, group=group: seen.append(group.model[4].weight.grad.clone())
        )
    assert Stage(one, other).ends() == [1, 1]
    assert seen[0].dtype == dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert torch.equal(seen[0], ((given[0].to(wide) + given[1].to(wide)) / 2).to(dtype))
    assert torch.equal(seen[0], seen[1])


def test_a_parameter_without_a_gradient_in_one_group_counts_as_zero_there_and_in_all_is_left_alone() -> None:
    one, other = pair(steps=1)
    grads: list[Any] = []
    for at, group in enumerate((one, other)):

        def backward(mine: Replicas, group: Group = group, at: int = at) -> None:
            layers = cast(nn.Sequential, group.model)
            used = cast(nn.Linear, layers[2 if at == 0 else 4])
            (used.weight.sum() * 2).backward()

        group.backward = backward  # type: ignore[method-assign]
        group.optimizer.register_step_pre_hook(
            lambda *_, group=group: grads.append([each.grad for each in group.model.parameters()])
        )
    assert Stage(one, other).ends() == [1, 1]
    for first, _, third, _, fifth, _ in grads:
        assert first is None
        assert bool((third == 1).all())
        assert bool((fifth == 1).all())


def test_what_cannot_be_averaged_is_refused_by_name() -> None:
    one, other = pair()
    for group in (one, other):
        group.model = nn.Embedding(4, 2, sparse=True)
        group.optimizer = torch.optim.SparseAdam(group.model.parameters())
        group.backward = (  # type: ignore[method-assign]
            lambda mine, group=group: group.model(torch.tensor([1])).sum().backward()
        )
    for ended in Stage(one, other).ends():
        assert isinstance(ended, InvalidInput)
        assert "sparse=False" in str(ended)
    whole = Group(0, part(1, 0, 1))
    whole.model = nn.Linear(2, 2, dtype=torch.complex64)
    whole.optimizer = torch.optim.SGD(whole.model.parameters())
    with pytest.raises(InvalidInput, match="real"):
        whole.replicas()


def test_a_step_that_is_left_before_its_average_ends_the_group(net: Net) -> None:
    one, other = pair(overlaps=True)

    class Left(Exception):
        pass

    def leave(step: int) -> None:
        if step == 3:
            one.steps = 0  # its loop ends, as by `break`

    one.backward = lambda mine: (Group.backward(one, mine), leave(mine.step + 1))  # type: ignore[method-assign]
    left = threading.Event()

    def average(self: Replicas) -> bool:
        if one.steps == 0 and self._part.rank == 0:
            left.set()
            return False
        return Replicas.average(self)

    original = one.replicas

    def made() -> Replicas:
        mine = original()
        mine.average = average.__get__(mine)  # type: ignore[method-assign]
        return mine

    one.replicas = made  # type: ignore[method-assign]
    stage = Stage(one, other)
    assert "left between" in str(stage.running[0].exception(20))
    assert left.is_set()
    Faked.net.gone.add((1, 0))
    stage.wait(lambda: bool(other.said))
    other.stay.end("the other one failed")


def test_memory_that_is_not_in_order_is_copied(net: Net) -> None:
    groups = [Group(at, part(1, at, 2), steps=2) for at in range(2)]
    for group in groups:
        torch.manual_seed(group.at)
        group.model = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        group.optimizer = torch.optim.AdamW(group.model.parameters())
        group.backward = (  # type: ignore[method-assign]
            lambda mine, group=group: group.model(torch.ones(1, 2, 4, 4)).square().mean().backward()
        )
    assert Stage(*groups).ends() == [2, 2]
    assert equal(*groups)


def test_many_groups_begin_alike_though_none_gives_more_than_three_copies(net: Net) -> None:
    groups = [Group(at, part(1, at, 6), steps=2) for at in range(6)]
    assert Stage(*groups).ends() == [2] * 6
    assert equal(*groups)
    copies = {(source, to) for _, source, to, _ in net.sent}
    assert copies == {(0, 1), (0, 2), (0, 4), (1, 3), (1, 5)}


def test_groups_that_are_alike_copy_nothing(net: Net) -> None:
    one, other = Group(3, part(1, 0, 2)), Group(3, part(1, 1, 2))
    assert Stage(one, other).ends() == [6, 6]
    assert not net.sent
    assert equal(one, other)


def test_what_else_belongs_to_the_state_is_refused_at_the_start_when_it_cannot_be_copied() -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"lock": threading.Lock()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    one = Group(0, part(1, 0, 1))
    with pytest.raises(InvalidInput, match=r"also\.odd"):
        Replicas(cast(Any, one), model=one.model, optimizer=one.optimizer, also={"odd": Odd()})


def test_averaged_weights_are_copied_sharded_or_not_and_so_is_a_learning_rate_that_is_a_tensor(net: Net) -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))

        class Averaged:
            def __init__(self, value: float) -> None:
                whole = torch.full((3, 2), value, dtype=torch.bfloat16)
                self.kept: dict[str, Any] = {"sharded": distribute_tensor(whole, mesh, [Shard(0)])}
                self.kept["plain"] = torch.tensor(value)

            def state_dict(self) -> dict[str, Any]:
                return {"weights": dict(self.kept), "number": 7}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                self.kept = state["weights"]
                assert state["number"] == 7

        groups = [Group(at, part(1, at, 2), steps=1) for at in range(2)]
        averaged = [Averaged(1.0 + at) for at in range(2)]
        for at, group in enumerate(groups):
            group.optimizer = torch.optim.SGD(group.model.parameters(), lr=torch.tensor(0.1 + at))
            group.replicas = (  # type: ignore[method-assign]
                lambda at=at, group=group: Replicas(
                    cast(Any, group), model=group.model, optimizer=group.optimizer, also={"averaged": averaged[at]}
                )
            )
        rate = groups[1].optimizer.param_groups[0]["lr"]
        assert Stage(*groups).ends() == [1, 1]
        kept = averaged[1].kept
        assert isinstance(kept["sharded"], DTensor)
        assert torch.equal(kept["sharded"].to_local(), torch.ones(3, 2, dtype=torch.bfloat16))
        assert kept["plain"] == 1.0
        assert groups[1].optimizer.param_groups[0]["lr"] is rate
        assert rate == torch.tensor(0.1)
    finally:
        dist.destroy_process_group()
