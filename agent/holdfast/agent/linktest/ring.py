"""A ring of nodes that exchange pieces as an all-reduce does: all send and receive at once, step by step.

What pairs do not show shows here: a port that carries one direction at a time, a switch that drops when all its
ports are busy, a stall now and then. It is the traffic of a ring all-reduce without the sums: of a bucket of
25 MiB each node sends one part of as many as there are nodes, then one for each part that it has received.
Source: https://andrew.gibiansky.com/blog/machine-learning/baidu-allreduce/ and, for the size of the bucket,
https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html

A ring is as slow as its slowest way, for everybody. So each node measures its own: from its first byte of a part
to the word of the next node that it has all of it, whose receiver waits for nothing else.
"""

import queue
import socket
import threading
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from holdfast.agent.linktest.judgement import Measured
from holdfast.agent.linktest.measurement import SILENT_S, admitted, exactly, resent_share

BUCKET_BYTES: Final = 25 << 20
_PART_MIN: Final = 1 << 16
_MORE, _LAST, _TAKEN = b"+", b".", b"k"


@dataclass(frozen=True, slots=True)
class Place:
    """One node's place in a ring of `size`: `node` sends to `peer`, who waits at `to`; whoever shows the token
    sends to it. Who `begins` says when it is over: after `seconds`.
    """

    node: str
    peer: str
    to: tuple[str, int]
    token: str
    size: int
    seconds: float
    begins: bool


@dataclass(slots=True)
class _Steps:
    """What one node's own sends took."""

    part: int
    took_s: list[float] = field(default_factory=list)

    def measured(self, place: Place, resent: float) -> Measured:
        """The way to the next node as these steps have it."""
        took = sum(self.took_s)
        return Measured(
            one=place.node,
            other=place.peer,
            latency_s=median(self.took_s),
            rate=self.part * len(self.took_s) / max(took, 1e-9),
            resent=resent,
            stall_s=max(self.took_s),
        )


def go_round(place: Place, door: socket.socket) -> Measured:
    """Be one of the ring until it is over, and say how the way to the next node was.

    Only what this node sends counts: one that waits in vain for the node before it has measured its own way.
    """
    steps = _Steps(max(_PART_MIN, BUCKET_BYTES // place.size))
    try:
        with socket.create_connection(place.to, timeout=SILENT_S) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.sendall(place.token.encode())
            arrived: queue.Queue[bool] = queue.Queue()
            taking = threading.Thread(target=_take_all, args=(door, place.token, steps.part, arrived), daemon=True)
            taking.start()
            _send_all(line, place, steps, arrived)
            resent = resent_share(line)
            taking.join(SILENT_S)  # else the node before would find this one gone
    except OSError as error:
        says = f"no answer over it in a ring of {place.size}: {error.strerror or error}"
        return Measured(one=place.node, other=place.peer, error=says)
    return steps.measured(place, resent)


def _send_all(line: socket.socket, place: Place, steps: _Steps, arrived: "queue.Queue[bool]") -> None:
    """Send a part, then one for each that arrives, until it is over or nothing arrives any more."""
    ends = time.perf_counter() + place.seconds
    part = bytes(steps.part)
    is_over = False
    while not is_over:
        began = time.perf_counter()
        line.sendall(_MORE)
        line.sendall(part)
        exactly(line, 1)
        steps.took_s.append(time.perf_counter() - began)
        try:
            is_over = arrived.get(timeout=SILENT_S) or (place.begins and time.perf_counter() >= ends)
        except queue.Empty:
            return
    line.sendall(_LAST)


def _take_all(door: socket.socket, token: str, part: int, arrived: "queue.Queue[bool]") -> None:
    """Take what the node before sends, and say of each part whether it was the last."""
    try:
        line = admitted(door, token)
        if line is None:
            return
        with line:
            is_last = False
            while not is_last:
                is_last = exactly(line, 1) == _LAST
                if not is_last:
                    exactly(line, part)
                    line.sendall(_TAKEN)
                arrived.put(is_last)
    except OSError:
        return  # whoever sends has measured that
