"""Stock torchrun: one launcher for every node, the rendezvous store on the first."""

import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import psutil

from drill.fleet import SCRIPTS, Fleet, Terms


@dataclass(frozen=True, slots=True)
class Tuning:
    """How torchrun is set up, besides a generous number of restarts."""

    rendezvous: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--rdzv-conf", self.rendezvous) if self.rendezvous else ()


# By default restarts share one store, and workers meet there what dead ones left behind: most restarts hang.
# Source: https://github.com/pytorch/pytorch, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py
UNSHARED: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
AS_IT_COMES: Final = Tuning()
# Nodes are waited for a second instead of thirty, and lost after two seconds of silence instead of fifteen.
TUNED: Final = Tuning("last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2", UNSHARED)
# With a keep-alive as short as that, a node that joins later is dropped before it is let in.
LETS_NODES_JOIN: Final = Tuning("last_call_timeout=1", UNSHARED)


class StockFleet(Fleet):
    """Every node is one torchrun; the first that listens has the store. `script` and `words` are as in
    HoldfastFleet.
    """

    def __init__(
        self, terms: Terms, *, tuning: Tuning, script: str = "plain.py", words: Sequence[str] = ()
    ) -> None:
        super().__init__(replace(terms, environment={**terms.environment, **tuning.variables}))
        self._flags = tuning.flags
        self._script = script
        self._words = tuple(words)
        self._port = free_port()

    def start_supervision(self) -> None:
        """There is none beside the nodes."""

    def start_node(self, number: int) -> None:
        shape = self.terms.shape
        self._launch(
            number,
            "torchrun",
            (
                *(sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-id=drill"),
                *(f"--rdzv-endpoint=127.0.0.1:{self._port}", f"--nnodes={shape.nodes_min}:{shape.nodes_max}"),
                *(f"--nproc-per-node={shape.local_size}", "--max-restarts=100", *self._flags),
                *(str(SCRIPTS / self._script), str(self.terms.folder), *self._words),
            ),
        )

    def host(self) -> int:
        """Where the store is: on one machine, in the torchrun that was first to listen."""
        return next(number for number, trees in self._nodes.items() if listens(trees[0].root, self._port))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(process: psutil.Process, port: int) -> bool:
    """Whether the process accepts connections there."""
    connections = process.net_connections("tcp")
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections)
