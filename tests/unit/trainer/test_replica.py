"""Which ranks hold the same, when fingerprints are taken, and bits that are flipped on request."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from trainer_builders import assignment

from holdfast.api.bitflip import BitFlip, bit_flip_file, request_bit_flip
from holdfast.trainer.drill import Corruption, flip_bit
from holdfast.trainer.fingerprint import Replica, fingerprint, group_of

Told = list[tuple[int, int, int]]


def model(width: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(width, 2)


def value_of(trained: nn.Module) -> int:
    return fingerprint(dict(trained.named_parameters()))


def replica(trained: nn.Module, told: Told, every: int = 10) -> Replica:
    return Replica(trained, every=every, part="", publish=lambda *said: told.append(said))


def test_fingerprints_are_taken_at_every_so_many_steps() -> None:
    trained, told = model(), Told()
    taken = replica(trained, told)
    for step in range(1, 25):
        taken.completed(step)
    group = group_of(dict(trained.named_parameters()))
    assert told == [(10, value_of(trained), group), (20, value_of(trained), group)]


def test_equal_replicas_tell_the_same_and_a_corrupted_one_another_value() -> None:
    told = Told()
    healthy, corrupted = model(), model()
    flip_bit(corrupted, BitFlip(rank=0, step=0, bit=0))
    for trained in (healthy, model(), corrupted):
        replica(trained, told).completed(10)
    assert told[0] == told[1]
    assert told[2][1] != told[0][1]
    assert told[2][2] == told[0][2]


def test_two_models_are_watched_as_one() -> None:
    told = Told()
    healthy, corrupted = (nn.ModuleList([model(), model(width=5)]) for _ in range(2))
    flip_bit(corrupted[1], BitFlip(rank=0, step=0, bit=0))
    for trained in (healthy, corrupted):
        replica(trained, told).completed(10)
    assert told[0][1] != told[1][1]
    assert told[0][2] == told[1][2]


class Odd(nn.Module):
    """A model that cannot be read."""

    def named_parameters(self, *_: object, **__: object) -> object:  # type: ignore[override]
        raise RuntimeError("no such storage")


def test_a_model_that_cannot_be_read_is_given_up_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    taken = replica(Odd(), told)
    taken.completed(10)
    taken.completed(20)
    assert told == []
    assert [record.getMessage() for record in caplog.records] == [
        "parameters are not fingerprinted any more step=10"
    ]


def test_ranks_that_hold_other_parameters_are_another_group() -> None:
    groups = [
        group_of(dict(model().named_parameters())),
        group_of(dict(model(4).named_parameters())),
        group_of(dict(model().double().named_parameters())),
        group_of({f"stage2.{name}": value for name, value in model().named_parameters()}),
        group_of(dict(model().named_parameters()), "tensor-parallel 1"),
    ]
    assert len(set(groups)) == len(groups)
    assert all(0 <= group < 2**64 for group in groups)


def sharded_groups(rank: int) -> tuple[int, int]:
    """The groups of one of four ranks: fully sharded, and in two replicas of two shards each."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
    try:
        weight = torch.arange(8.0)
        flat, grid = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
        fully = distribute_tensor(weight, flat, [Shard(0)], src_data_rank=None)
        hybrid = distribute_tensor(weight, grid, [Replicate(), Shard(0)], src_data_rank=None)
        return group_of({"weight": fully}), group_of({"weight": hybrid})
    finally:
        torch.distributed.destroy_process_group()


def test_shards_are_compared_with_the_same_shard_of_other_replicas() -> None:
    groups = [sharded_groups(rank) for rank in range(4)]
    fully, hybrid = zip(*groups, strict=True)
    assert len(set(fully)) == 4
    assert (hybrid[0], hybrid[1]) == (hybrid[2], hybrid[3])
    assert hybrid[0] != hybrid[1]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_one_bit_of_one_element_is_flipped(kind: torch.dtype) -> None:
    before, after = model().to(kind), model().to(kind)
    name = flip_bit(after, BitFlip(rank=0, step=0, parameter="weight", element=4, bit=9))
    assert name == "weight"
    old, new = (trained.get_parameter("weight").detach().view(-1) for trained in (before, after))
    assert torch.nonzero(old != new).tolist() == [[4]]
    octets = old[4].view(1).view(torch.uint8) ^ new[4].view(1).view(torch.uint8)
    assert octets.nonzero().tolist() == [[1]]
    assert octets[1] == 1 << 1
    flip_bit(after, BitFlip(rank=0, step=0, parameter="weight", element=4, bit=9))
    assert value_of(after) == value_of(before)


def test_a_parameter_that_is_not_there_cannot_be_corrupted() -> None:
    with pytest.raises(LookupError, match="no parameter head"):
        flip_bit(model(), BitFlip(rank=0, step=0, parameter="head"))


def test_a_request_is_carried_out_at_its_step_once(tmp_path: Path) -> None:
    trained = model()
    healthy = value_of(trained)
    asked = Corruption(tmp_path, assignment(rank=1).rank, trained)
    asked.completed(38)
    request_bit_flip(tmp_path, BitFlip(rank=1, step=40))
    asked.completed(39)
    assert value_of(trained) == healthy
    asked.completed(41)
    corrupted = value_of(trained)
    assert corrupted != healthy
    asked.completed(42)
    Corruption(tmp_path, 1, trained).completed(43)
    assert value_of(trained) == corrupted
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("request_text", "why"),
    [
        (b"{}", "bit flip is not understood"),
        (b"nonsense", "bit flip is not understood"),
        (b'{"rank":1,"step":1,"parameter":"head"}', "no bit was flipped"),
    ],
)
def test_a_request_that_makes_no_sense_is_removed_and_told(
    tmp_path: Path, request_text: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    bit_flip_file(tmp_path, 1).write_bytes(request_text)
    trained = model()
    healthy = value_of(trained)
    Corruption(tmp_path, 1, trained).completed(5)
    assert value_of(trained) == healthy
    assert not bit_flip_file(tmp_path, 1).exists()
    assert why in caplog.text
