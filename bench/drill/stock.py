"""Stock torchrun: one launcher for every node, the rendezvous store on the first."""

import socket
import sys
from typing import Final

import psutil

from drill.fleet import SCRIPTS, Fleet, Terms

# Fairly tuned: the store is not shared between restarts, which torchrun 2.9 to 2.13 do by default and then meet
# what dead workers left in it; nodes are waited for a second instead of thirty, and lost after two.
# Source: https://github.com/pytorch/pytorch, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py
TUNED_VARIABLES: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
TUNED_FLAGS: Final = ("--rdzv-conf", "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2")


class StockFleet(Fleet):
    """torchrun with its defaults, apart from a generous number of restarts."""

    def __init__(self, terms: Terms, *, flags: tuple[str, ...] = ()) -> None:
        super().__init__(terms)
        self._flags = flags
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
                *(str(SCRIPTS / "plain.py"), str(self.terms.folder)),
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
