"""Builders of what the trainer's unit tests hand around."""

from holdfast.api.control import Assignment
from holdfast.api.round import Endpoint, Restore


def assignment(*, round: int = 0, rank: int = 0, world_size: int = 2, local_rank: int | None = None) -> Assignment:
    return Assignment(
        job="research/gpt",
        round=round,
        rank=rank,
        local_rank=rank if local_rank is None else local_rank,
        world_size=world_size,
        local_size=world_size,
        endpoint=Endpoint("127.0.0.1", 29500),
        restore=Restore(),
        reason="test",
    )
