"""The process group of a round after one that could not be formed."""

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from trainer_builders import assignment

from holdfast.api.torchnames import TorchName
from holdfast.trainer import group
from holdfast.trainer.group import RoundGroup
from holdfast.trainer.torchcaches import TorchCaches


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


def test_what_cannot_be_forgotten_any_more_is_known_once_the_first_group_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Noticed only as the group ends, a process that has been asked to go on would enter with what it remembers.
    def takes_an_argument_now(holder: object, name: str) -> None:
        raise TypeError("missing 1 required positional argument")

    caches = TorchCaches(((TorchName("sys", "path", "nothing"), takes_an_argument_now),))
    monkeypatch.setattr(group, "CACHES", caches)
    first = RoundGroup(assignment(world_size=1), backend="gloo", timeout_s=10.0)
    first.form(lambda: None)
    try:
        assert caches.lacking() == ("sys.path",)
    finally:
        first.close()
