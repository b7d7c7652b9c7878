"""The port to whoever gave the hosts: Slurm, or somebody with ssh."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.api.plan import NodeState


@dataclass(frozen=True, slots=True)
class Standing:
    """What whoever gave a host says of it."""

    state: NodeState
    reason: str = ""

    @property
    def takes_work(self) -> bool:
        """Whether something may be started on it. Unknown may: an attempt says more."""
        return self.state in (NodeState.READY, NodeState.UNKNOWN)


READY: Final = Standing(NodeState.READY)


class Reach(Protocol):
    """How hosts are reached, seen and taken out of service."""

    def command(self, host: str, program: Sequence[str]) -> tuple[str, ...]:
        """What runs `program` on the host with our standard input and output, until it ends."""
        ...

    async def standings(self) -> Mapping[str, Standing]:
        """What is said of each host now. Empty where nobody says anything, or could not be asked."""
        ...

    async def take_out(self, host: str, reason: str) -> str | None:
        """Let nobody use the host any more. None when done; else what a human should do, in one sentence."""
        ...

    async def put_back(self, host: str) -> str | None:
        """Undo `take_out`, of what it did and nobody else. None when done; else what a human should do."""
        ...

    async def given_again(self) -> Sequence[str]:
        """Hosts that an earlier run took out, and that are given to this one all the same. Each is told once."""
        ...
