"""What connects one rank to those of the same place in the other replica groups, for one round.

It goes through host memory and gloo, beside the group's own backend: it can be formed anew, and freed from another
thread, while the process and the group within it live on. The ranks meet in the store of the first group that
trains.

Source: groups of processes formed anew for each membership, with a control path on the CPU:
https://arxiv.org/abs/2602.00277
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.api.control import Assignment
from holdfast.trainer.group import HeldConnections, NotFormed
from holdfast.trainer.store import RoundStore, meet
from holdfast.trainer.torchgroups import PrefixStore, limit_waits

logger = logging.getLogger(__name__)

LOOKS_S: Final = 0.1
"""How often a rank that waits for the others to come looks whether that is of use still."""
CONNECTS_S: Final = 20.0
"""How long those that are all there may take to connect. If one of them dies just then, another waits so long."""
GRACE_S: Final = 5.0
"""How long a rank goes on to wait for the others in a round that is over for some of them, but broke for none:
they come to the end of the step as it does."""


class Across:
    """`abort` and `overtaken_by` may be called from any thread, all else belongs to the training thread.

    `round` is the round it is for. Every method that talks raises RuntimeError, or NotFormed, when a peer is gone
    or it was aborted; nothing is known then of what arrived.
    """

    def __init__(self, part: Assignment, *, timeout_s: float) -> None:
        assert part.group is not None
        assert part.group.index is not None, "a group that is being formed has nobody to talk to"
        self.round = part.round
        self.size, self.index = part.group.count, part.group.index
        self._part, self._timeout_s = part, timeout_s
        # Its own group's store: others meet there, also in the next round, while this one is aborted.
        is_host = part.rank == part.group.first_rank
        self._connections = HeldConnections(serves_at=part.group.endpoint.port if is_host else None)
        self._store: RoundStore | None = None
        self._group: Any = None  # torch's stubs do not know what its backends do by themselves
        self._is_forming, self._is_aborted, self._is_closed = True, False, False
        self._waits_since: float | None = None
        self._begun: list[dist.Work] = []
        self._guard = threading.Lock()

    def form(self, check: Callable[[], None]) -> None:
        """Meet the others. `check` is called while waiting, and raises when that is of no use any more."""
        part, group = self._part, self._part.group
        assert group is not None
        if self.size == 1:
            self._is_forming = False
            return
        # A client of that group's store, whichever place it has itself.
        host = msgspec.structs.replace(part, rank=1, round=group.meets_in, group=None)
        place = part.rank - group.first_rank
        check()
        self._waits_since = time.monotonic()
        self._store = meet(host, timeout_s=self._timeout_s, check=check)
        prefix = PrefixStore(f"holdfast/across/{self.round}/{place}", self._store)
        self._assemble(prefix, check)
        self._group = dist.ProcessGroupGloo(prefix, self.index, self.size, timedelta(seconds=CONNECTS_S))
        limit_waits(self._group, timedelta(seconds=self._timeout_s))
        with self._guard:
            self._connections.hold()
            self._is_forming, self._waits_since = False, None
        self._raise_if_aborted()

    def _assemble(self, store: PrefixStore, check: Callable[[], None]) -> None:
        """Once all are here they connect, all of them or none: who waits for a peer to connect cannot be freed,
        and would wait in vain for one that told where it is and turned to a newer round.
        """
        if store.add("here", 1) == self.size:
            store.compare_set("verdict", "", "connect")
        while True:
            try:
                store.wait(["verdict"], timedelta(seconds=LOOKS_S))
                break
            except dist.DistStoreError:  # not yet
                self._raise_if_aborted()
            try:
                check()
            except BaseException:
                if store.compare_set("verdict", "", "leave") != b"connect":
                    raise
        if store.get("verdict") != b"connect":
            raise NotFormed(f"a replica group has left round {self.round} before all were there")

    def sum(self, values: Tensor) -> None:
        """`values`, in host memory, become the sum over all groups, bit by bit the same in each of them."""
        self.end_sum(self.begin_sum(values))

    def begin_sum(self, values: Tensor) -> dist.Work | None:
        """As `sum`, but nobody waits for it before `end_sum`: `values` are left alone until then. All groups begin
        their sums in the same order.
        """
        self._raise_if_aborted()
        if self._group is None or not values.numel():
            return None
        self._begun = [each for each in self._begun if not each.is_completed()]
        self._begun.append(self._group.allreduce([values]))
        return self._begun[-1]

    def end_sum(self, begun: dist.Work | None) -> None:
        """Wait for what `begin_sum` gave."""
        if begun is None:
            self._raise_if_aborted()
        else:
            self._wait(lambda group: begun)

    def gather(self, values: Tensor) -> list[Tensor]:
        """The values of every group, in their order."""
        told = [torch.empty_like(values) for _ in range(self.size)]
        if self._group is None:
            return [values]
        self._wait(lambda group: group.allgather([told], [values]))
        return told

    def send(self, values: Tensor, to: int) -> None:
        """`values`, in host memory, to the group of that index."""
        self._wait(lambda group: group.send([values], to, 0))

    def receive(self, values: Tensor, source: int) -> None:
        """Into `values`, in host memory, what the group of that index sends."""
        self._wait(lambda group: group.recv([values], source, 0))

    def _wait(self, begin: Callable[[Any], dist.Work]) -> None:
        assert self._group is not None
        self._raise_if_aborted()
        self._waits_since = time.monotonic()
        try:
            begin(self._group).wait()
        finally:
            self._waits_since = None

    def _raise_if_aborted(self) -> None:
        if self._is_aborted:
            raise NotFormed(f"round {self.round} is over between replica groups")

    def overtaken_by(self, later: Assignment) -> None:
        """A newer round is known. Who waits in this one is freed at once when somebody cannot answer there any
        more; otherwise once it has waited for long. While it is being formed `check` says that it is of no use.
        """
        broke = later.group is not None and later.group.broke_in > self.round
        since = self._waits_since
        if broke or (since is not None and time.monotonic() > since + GRACE_S):
            self.abort()

    def abort(self) -> None:
        """Make every wait here raise. Peers notice nothing. Repeatable: what is just being formed may escape."""
        with self._guard:
            if self._is_closed or (self._is_aborted and not self._is_forming):
                return
            self._is_aborted = True
            if self._is_forming:
                self._connections.end()
            else:
                self._connections.cut()

    def close(self) -> None:
        """End it. The connections stay open, of no use to anybody, until `release`."""
        with self._guard:
            if self._is_forming:
                self._connections.hold()
            if not all(each.is_completed() for each in self._begun):
                self._connections.cut()  # Else the group would wait for them.
            self._begun.clear()
            self._is_closed, self._group = True, None
        if self._store is not None:
            self._store.close()

    def release(self) -> None:
        """Let the connections go. To be called once no peer waits in this round any more."""
        self._connections.release()
