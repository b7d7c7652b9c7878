"""The default process group of one round: formed, aborted from another thread, and left without a trace."""

import contextlib
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import torch.distributed as dist

from holdfast.api.control import Assignment
from holdfast.api.errors import Unavailable
from holdfast.api.rankrecord import UNKNOWN_INT
from holdfast.trainer.store import RoundStore, meet
from holdfast.trainer.torchcaches import CACHES
from holdfast.trainer.torchgroups import HashStore, Store, abort_all, sequence_number

_DESCRIPTORS = "/proc/self/fd"
_SOCKET_LINK = re.compile(r"socket:\[(\d+)\]")
_GLOO_TROUBLE = re.compile(
    r"gloo/transport/"
    r"|Connection (?:closed|reset|refused) by peer"
    r"|Timed out waiting \d+ms for (?:send|recv) operation"
    r"|Gloo connectFullMesh failed"
    r"|Broken pipe",
    re.IGNORECASE,
)


class NotFormed(Unavailable):
    """The ranks of a round could not meet: a matter of the round, not of this process."""


class RoundGroup:
    """The process group of one round.

    `form`, `barrier` and `close` belong to the training thread; `abort` and `collective_sequence` may be called
    from any other. The TCP connections this process makes while the group lives are taken for the group's: an
    abort ends them all, and they stay open, held but of no use, until `release`.
    """

    def __init__(
        self, assignment: Assignment, *, backend: str, timeout_s: float, is_torchrun: bool = False
    ) -> None:
        """Its ranks meet at the round's endpoint, where rank 0 hosts a store; under torchrun as that says. Of a
        replica group these are the ranks of the group, and its store is there for other groups as well.
        """
        self._assignment, self._is_group = assignment.inside(), assignment.group is not None
        self._backend = backend
        self._timeout_s = timeout_s
        self._is_torchrun = is_torchrun
        self._connections = HeldConnections()
        self._hook_before = sys.excepthook
        self.store: Store | None = None
        """Where the ranks met; None before `form`, for a single rank, and under another launcher."""
        self._default: dist.ProcessGroup | None = None
        self._is_closed = False
        self._guard = threading.Lock()

    def form(self, check: Callable[[], None]) -> None:
        """Meet the other ranks and create the default group.

        `check` is called while waiting and raises when the round is over. Raises NotFormed, DistError or
        RuntimeError when the others cannot be met.
        """
        # Nothing is kept before a first round, but what can no longer be cleared is told before a second one.
        CACHES.forget()
        if "nccl" in self._backend:
            # Otherwise NCCL's watchdog thread ends the process when a peer is lost.
            # Source: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        part, timeout = self._assignment, timedelta(seconds=self._timeout_s)
        try:
            if self._is_torchrun:
                dist.init_process_group(self._backend, init_method="env://", timeout=timeout)
            else:
                store: Store = HashStore()
                if part.world_size > 1 or self._is_group:
                    store = self.store = meet(part, timeout_s=self._timeout_s, check=check)
                dist.init_process_group(
                    self._backend, store=store, rank=part.rank, world_size=part.world_size, timeout=timeout
                )
        except Unavailable as error:
            raise NotFormed(str(error)) from error
        with self._guard:
            self._default = dist.group.WORLD

    def barrier(self) -> None:
        """Wait for every rank, unless the script has already destroyed the group."""
        if self._assignment.world_size > 1 and dist.is_initialized():
            dist.barrier()

    def abort(self) -> None:
        """Make every wait of this process in the group raise. Peers notice nothing: each ends its own. Repeatable.

        What is being formed meanwhile may escape one call: call again until the training thread has left.
        """
        # Under the guard, so that a late abort can never meet the connections of the round after.
        with self._guard:
            if self._is_closed:
                return
            self._connections.end()
            abort_all()

    def drop(self) -> None:
        """End what is under way on the device, so that `close` does not wait for it, and let no peer notice
        `close`: the connections end with this process.

        For one that is about to end by its script's own fault. Its end says whose fault it was; peers whose
        collectives failed long before it would be heard first.
        """
        with self._guard:
            abort_all()
            self._connections.hold()

    def collective_sequence(self) -> int:
        """How many collectives the default group has issued; UNKNOWN_INT when it does not say."""
        with self._guard:
            if self._default is None:
                return UNKNOWN_INT
            told = sequence_number(self._default)
            return UNKNOWN_INT if told is None else told

    def close(self) -> None:
        """Destroy every group of the process and what torch remembers of them.

        While peers may still wait in the group, `abort` comes first: it holds the connections.
        """
        with self._guard:
            self._is_closed = True
            self._default = None
        if dist.is_initialized():
            dist.destroy_process_group()
        if isinstance(self.store, RoundStore):
            self.store.close()
        # Each init_process_group wraps the hook of the one before.
        sys.excepthook = self._hook_before
        CACHES.forget()

    def release(self) -> None:
        """Let the connections close. To be called once no peer waits in this round any more."""
        self._connections.release()


class HeldConnections:
    """The TCP connections made since this object was, and how to free a thread that waits on them.

    A collective of the gloo backend that waits for a dead or stopped peer returns only when its sockets do: the
    backend's own `abort` and `shutdown` do nothing. Ending what arrives on its connections, from another thread,
    makes the waiting thread raise an ordinary RuntimeError out of the collective within milliseconds. Linux only:
    connections are found in /proc/self/fd. Not for use by two threads at once.

    Two things must not happen, both because gloo loses an operation whose send fails while its event loop answers
    a peer: the thread that waits for that operation then waits for ever.

    - Sending must not fail here, so only the receiving side is shut down.
    - Sending must not fail at the peer before it has ended the round itself, so no connection may be closed, as
      gloo does when it notices the end: a duplicate of each is held until the next round stands.

    One wait has no connection to end: of a rank that listens for a peer which leaves, or dies, between telling
    its address and connecting. The launcher replaces a worker that does not leave in time.

    Source: https://github.com/pytorch/pytorch/issues/130345 (gloo has no abort)
    """

    def __init__(self, *, serves_at: int | None = None) -> None:
        """Of a process that serves others at the port `serves_at`, what they ask there is left alone."""
        self._spared = {inode for _, inode in _descriptors()}
        self._held: list[socket.socket] = []
        self._serves_at = serves_at

    def hold(self) -> None:
        """Hold every connection that is not held yet. The owner may close it without the peer noticing.

        Listening sockets are left alone: gloo's event loop ends the process when one of its listeners fails.
        """
        for descriptor, inode in _descriptors():
            if inode in self._spared:
                continue
            connection = _duplicate(descriptor, inode)
            if connection is None:
                continue
            self._spared.add(inode)
            if connection.getsockname()[1] == self._serves_at:
                connection.close()
            else:
                self._held.append(connection)

    def end(self) -> None:
        """Hold those made so far, and let nothing more arrive: who waits to receive is told it has closed."""
        self.hold()
        self.cut()

    def cut(self) -> None:
        """Let nothing more arrive on those that are held."""
        for connection in self._held:
            with contextlib.suppress(OSError):  # The peer was faster, and is gone.
                connection.shutdown(socket.SHUT_RD)

    def release(self) -> None:
        """Let go: connections that nobody else holds are closed."""
        for connection in self._held:
            connection.close()
        self._held.clear()


def _descriptors() -> Iterator[tuple[int, int]]:
    """Those of the sockets that this process holds now, with their inodes."""
    for name in os.listdir(_DESCRIPTORS):
        try:
            match = _SOCKET_LINK.fullmatch(os.readlink(f"{_DESCRIPTORS}/{name}"))
        except OSError:
            continue  # Closed since it was listed.
        if match:
            yield int(name), int(match[1])


def _duplicate(descriptor: int, inode: int) -> socket.socket | None:
    """A duplicate of a TCP connection; None when the descriptor is anything else, or no longer that socket."""
    try:
        number = os.dup(descriptor)
    except OSError:
        return None
    # Checked on the duplicate, whose number cannot come to mean another file.
    if os.fstat(number).st_ino != inode:
        os.close(number)
        return None
    duplicate = socket.socket(fileno=number)
    is_tcp = duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.type == socket.SOCK_STREAM
    if is_tcp and not duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return duplicate
    duplicate.close()
    return None


def is_collective_failure(error: BaseException) -> bool:
    """Whether an exception that left the training function is a peer's fault, and not the script's own.

    The rule, in one place. It looks at the exception and everything it was raised from:

    - an error type of torch.distributed (the NCCL backend, the store, its network) is a collective failure; so is
      a group that was not formed: it cannot be entered as it was assigned, whoever is to blame;
    - a RuntimeError whose text names the transport of the gloo backend, or a connection that a peer closed, is
      one as well, because gloo raises plain RuntimeErrors;
    - everything else is the script's own: it propagates and ends the process with its traceback.

    A group of one rank has no peers, so nothing in it is a peer's fault; the caller knows the world size.
    """
    return any(
        isinstance(link, dist.DistError | NotFormed)
        or (isinstance(link, RuntimeError) and _GLOO_TROUBLE.search(str(link)) is not None)
        for link in raised_from(error)
    )


def raised_from(error: BaseException) -> Iterator[BaseException]:
    """The exception itself, and each that it was raised from or during."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
