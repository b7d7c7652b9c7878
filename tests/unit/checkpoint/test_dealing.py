"""How many ranks take different batches: what the script says, else its sampler, else the meshes of its model."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler

from holdfast.checkpoint.capture.dealing import Dealing, sharing_of

NUMBERS: Any = list(range(16))


class Shared(BatchSampler):
    """As Accelerate's."""

    num_processes = 4


def loaders() -> dict[str, Any]:
    return {
        "a plain loader": DataLoader(NUMBERS, 2),
        "torch's sampler": DataLoader(NUMBERS, 2, sampler=DistributedSampler(NUMBERS, num_replicas=4, rank=0)),
        "Accelerate's": DataLoader(NUMBERS, batch_sampler=Shared(SequentialSampler(NUMBERS), 2, drop_last=False)),
        "one that counts more than there are": DataLoader(
            NUMBERS, 2, sampler=DistributedSampler(NUMBERS, num_replicas=16, rank=0)
        ),
    }


@pytest.mark.parametrize(("name", "takers"), [*zip(loaders(), (2, 4, 4, 2), strict=True)])
def test_a_sampler_that_deals_out_says_it_and_else_the_model_does(name: str, takers: int) -> None:
    data = loaders()[name]
    assert Dealing(8, sharing=4).takers(data) == takers
    assert Dealing(8, sharing=4, said=3).takers(data) == 3


def test_without_either_each_rank_takes_its_own() -> None:
    assert Dealing(8).takers() == Dealing(8).takers(iter(NUMBERS)) == 8
    assert Dealing(2, sharing=8).takers() == 1


@pytest.fixture
def eight_ranks() -> Any:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("eight_ranks")
@pytest.mark.parametrize(
    ("shape", "names", "placements", "sharing"),
    [
        ((8,), None, (Shard(0),), 8),
        ((8,), None, (Replicate(),), 1),
        ((8,), ("tp",), (Shard(0),), 8),
        ((8,), ("ep",), (Shard(0),), 1),
        ((4, 2), ("dp", "tp"), (Shard(0), Shard(1)), 2),
        ((2, 2, 2), ("dp", "cp", "tp"), (Shard(0), Replicate(), Shard(1)), 4),
    ],
)
def test_ranks_that_a_tensor_is_sharded_over_by_hand_work_on_one_batch(
    shape: tuple[int, ...], names: tuple[str, ...] | None, placements: Any, sharing: int
) -> None:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = torch.nn.Linear(8, 8)
    model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), mesh, placements))
    assert sharing_of(model) == sharing


@pytest.mark.usefixtures("eight_ranks")
def test_ranks_that_fsdp_shards_over_take_batches_of_their_own() -> None:
    assert sharing_of(fully_shard(torch.nn.Linear(8, 8), mesh=init_device_mesh("cpu", (8,)))) == 1
