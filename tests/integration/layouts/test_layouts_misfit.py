from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from layouts_troupe import Troupe
from layouts_zoo import checkpointer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from holdfast.checkpoint import Unfit


class HeldSnapshot:
    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def held(given: tuple[Path, tuple[int, ...], torch.dtype, str]) -> tuple[Path, HeldSnapshot]:
    folder, shape, dtype, name = given
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.ones(shape, dtype=dtype)
    return folder, HeldSnapshot({name: distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)})


def save(given: tuple[Path, tuple[int, ...], torch.dtype, str]) -> None:
    folder, part = held(given)
    saver = checkpointer(folder, part=part)
    list(saver.steps("xx", until=1))
    saver.close()


def load(given: tuple[Path, tuple[int, ...], torch.dtype, str]) -> tuple[str, bool]:
    """What was refused, and whether the tensor is as it was."""
    folder, part = held(given)
    loader = checkpointer(folder, part=part)
    try:
        next(loader.steps("xyz"))
    except Unfit as misfit:
        return str(misfit), bool((part.state[given[3]].to_local() == 1).all())
    return "", False


@pytest.mark.parametrize(
    ("shape", "dtype", "name", "words"),
    [
        ((8, 6), torch.float32, "w", ("extra.part.w", "[8, 6]", "[8, 4]")),
        ((8, 4, 1), torch.float32, "w", ("extra.part.w", "[8, 4, 1]", "[8, 4]")),
        ((8, 4), torch.bfloat16, "w", ("extra.part.w", "bfloat16", "float32")),
        ((8, 4), torch.float32, "v", ("extra.part.v",)),
    ],
    ids=["another size", "another dimension", "another dtype", "another name"],
)
def test_what_does_not_fit_is_refused_on_every_rank_by_its_name_and_both_shapes(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    name: str,
    words: tuple[str, ...],
    troupe: Troupe,
    tmp_path: Path,
) -> None:
    troupe.play(save, (tmp_path, (8, 4), torch.float32, "w"), ranks=2)
    answers = troupe.play(load, (tmp_path, shape, dtype, name), ranks=3)
    assert len({refused for refused, _ in answers}) == 1
    assert all(untouched for _, untouched in answers)
    for word in words:
        assert word in answers[0][0]
