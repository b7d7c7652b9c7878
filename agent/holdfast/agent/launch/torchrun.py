"""What torch loads from the entry-point group `torchrun.handlers`, for `torchrun --rdzv-backend=holdfast`.

torch loads it in every process that imports its elastic rendezvous, while that import is under way, so nothing
of torch and nothing heavy is imported before our backend is asked for. Source:
https://github.com/pytorch/pytorch/blob/main/torch/distributed/elastic/rendezvous/registry.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters


def rendezvous_creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """What the entry point gives torch: a function that makes the rendezvous for the backend `holdfast`."""

    def make_rendezvous(parameters: RendezvousParameters) -> RendezvousHandler:
        from holdfast.agent.launch import torchagent

        return torchagent.make_rendezvous(parameters)

    return make_rendezvous
