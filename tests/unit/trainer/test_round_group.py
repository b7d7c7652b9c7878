"""The process group of a round after one that could not be formed."""

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from trainer_builders import assignment

from holdfast.trainer import group
from holdfast.trainer.group import RoundGroup


class OnlyMine(HashStore):
    """A store that nobody else comes to."""

    def close(self) -> None:
        """It has no connection."""


def test_a_group_that_could_not_be_formed_takes_no_name_from_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # The keys that ranks meet by begin with the group's name. One that counted on would wait for the others at
    # another key than they for it, all of them until their time is over.
    monkeypatch.setattr(group, "meet", lambda *_, **__: OnlyMine())
    broken = RoundGroup(assignment(world_size=2), backend="gloo", timeout_s=0.1)
    with pytest.raises(dist.DistStoreError):
        broken.form(lambda: None)
    broken.close()

    whole = RoundGroup(assignment(world_size=1), backend="gloo", timeout_s=10.0)
    whole.form(lambda: None)
    try:
        assert dist.group.WORLD is not None
        assert dist.group.WORLD.group_name == "0"
    finally:
        whole.close()
