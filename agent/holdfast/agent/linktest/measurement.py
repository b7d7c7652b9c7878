"""One link measured: round trips of small messages, then bytes in both directions, over one TCP connection.

TCP goes through the same network cards, cables and switches as the traffic of gloo, and over Ethernet as that of
NCCL's sockets. What RDMA does with them it does not see.
"""

import socket
import struct
import time
from statistics import median
from typing import Final

from holdfast.agent.linktest.judgement import Measured

# A few bytes, as of a barrier or the header of a collective; the median of so many is steady.
PING: Final = bytes(64)
PINGS: Final = 200
PING_SHARE: Final = 0.25  # of the time, should the round trips be slow
# Bytes flow without a pause: to TCP an all-reduce of large buckets (DDP's are 25 MiB) is such a flow, and its
# windows open as far. Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
PIECE: Final = bytes(1 << 16)
# Silence of so long is a dead link: TCP has tried again for the fifth time by then.
# Source: https://www.rfc-editor.org/rfc/rfc6298 (1 s, doubled each time)
SILENT_S: Final = 15.0

_PING, _PUSH, _PULL, _END = b"p", b"s", b"r", b"e"
_MORE, _LAST = b"+", b"."
_SECONDS = struct.Struct("!d")
_SHARE = struct.Struct("!d")
_FLOW = struct.Struct("!Qd")  # bytes, seconds
# Where `struct tcp_info` has what counts: segments sent again, and sent.
# Source: https://github.com/torvalds/linux/blob/master/include/uapi/linux/tcp.h
_INFO_BYTES, _RESENT_AT, _SENT_AT = 192, 100, 136


def call(one: str, other: str, to: tuple[str, int], token: str, seconds: float) -> Measured:
    """Measure the way from here, `one`, to `other`, who waits at `to`. What fails is told in the result."""
    try:
        with socket.create_connection(to, timeout=SILENT_S) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.sendall(token.encode())
            latency_s = _round_trip(line, seconds * PING_SHARE)
            line.sendall(_PUSH)
            flow(line, seconds / 2)
            there = _rate(_FLOW.unpack(exactly(line, _FLOW.size)))
            line.sendall(_PULL + _SECONDS.pack(seconds / 2))
            back = _rate(take(line))
            line.sendall(_END)
            (theirs,) = _SHARE.unpack(exactly(line, _SHARE.size))
            resent = max(resent_share(line), theirs)
    except OSError as error:
        return Measured(one=one, other=other, error=f"no answer over it: {error.strerror or error}")
    return Measured(one=one, other=other, latency_s=latency_s, rate=min(there, back), resent=resent)


def answer(door: socket.socket, token: str) -> bool:
    """Be measured with by whoever shows the token. False when nobody came, or the line broke."""
    try:
        line = admitted(door, token)
        if line is None:
            return False
        with line:
            _serve(line)
    except OSError:
        return False
    return True


def admitted(door: socket.socket, token: str) -> socket.socket | None:
    """The connection of whoever shows the token; others are sent away. None when it does not come in time."""
    deadline = time.monotonic() + SILENT_S
    while (left_s := deadline - time.monotonic()) > 0:
        door.settimeout(left_s)
        try:
            line, _ = door.accept()
        except TimeoutError:
            return None
        line.settimeout(SILENT_S)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if exactly(line, len(token)) == token.encode():
                return line
        except OSError:
            pass  # whoever it was, it is not the one that is waited for
        line.close()
    return None


def _serve(line: socket.socket) -> None:
    while (wanted := exactly(line, 1)) != _END:
        if wanted == _PING:
            line.sendall(exactly(line, len(PING)))
        elif wanted == _PUSH:
            line.sendall(_FLOW.pack(*take(line)))
        else:
            flow(line, *_SECONDS.unpack(exactly(line, _SECONDS.size)))
    line.sendall(_SHARE.pack(resent_share(line)))


def _round_trip(line: socket.socket, limit_s: float) -> float:
    """The median of round trips, in seconds."""
    trips: list[float] = []
    began = time.perf_counter()
    while len(trips) < PINGS and (not trips or time.perf_counter() - began < limit_s):
        sent_at = time.perf_counter()
        line.sendall(_PING + PING)
        exactly(line, len(PING))
        trips.append(time.perf_counter() - sent_at)
    return median(trips)


def flow(line: socket.socket, seconds: float) -> None:
    """Send for so long, one piece after the other, and say when it was the last."""
    end = time.perf_counter() + seconds
    piece = _MORE + PIECE
    while time.perf_counter() < end:
        line.sendall(piece)
    line.sendall(_LAST)


def take(line: socket.socket) -> tuple[int, float]:
    """Receive what `flow` sends: bytes, and the seconds they took."""
    began = time.perf_counter()
    count = 0
    while exactly(line, 1) == _MORE:
        count += len(exactly(line, len(PIECE)))
    return count, time.perf_counter() - began


def _rate(flown: tuple[int, float]) -> float:
    count, took_s = flown
    return count / max(took_s, 1e-9)


def exactly(line: socket.socket, count: int) -> bytes:
    """So many bytes. Raises OSError when the other side ends before."""
    read = bytearray(count)
    view = memoryview(read)
    at = 0
    while at < count:
        got = line.recv_into(view[at:])
        if not got:
            raise ConnectionResetError(None, "the other side went away")
        at += got
    return bytes(read)


def resent_share(line: socket.socket) -> float:
    """The share of segments this side had to send again; 0 where the kernel does not tell."""
    told = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    if len(told) < _SENT_AT + 4:
        return 0.0
    (again,) = struct.unpack_from("=I", told, _RESENT_AT)
    (sent,) = struct.unpack_from("=I", told, _SENT_AT)
    return float(again) / max(float(sent), 1.0)
