"""A node that takes part in a link test: it measures with whom the lead says."""

import errno
import io
import socket
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.agent.linktest.measurement import answer, call
from holdfast.agent.linktest.ring import Place, go_round
from holdfast.agent.linktest.wire import LINE_MAX, TO_MEMBER, Done, Ended, Joined, Ring, Turn
from holdfast.api.decoding import decode
from holdfast.api.errors import Unavailable
from holdfast.api.selftest import Judged

_CALL_AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Part:
    """How a node takes part: called `node`, with `token`; partners reach it at `address`, empty: from where the
    lead sees it come. The lead is waited for `wait_s` seconds, and the end of the test `limit_s` (None: for ever).
    """

    node: str
    address: str
    wait_s: float
    token: str = ""
    limit_s: float | None = None


def take_part(part: Part, lead: tuple[str, int]) -> Judged:
    """Join, measure until the test is over, and return what it came to.

    Raises Unavailable when the lead is not there, goes, or says nothing for too long, and Malformed when what
    answers there is no lead.
    """
    ends = None if part.limit_s is None else time.monotonic() + part.limit_s
    with opened(part.address) as door:
        line = _called(lead, part.wait_s)
        with line, line.makefile("rb", buffering=1 << 16) as lines:
            _send(line, Joined(part.node, door.getsockname()[1], part.address, part.token))
            while heard := _heard(line, lines, ends):
                message = decode(TO_MEMBER, heard)
                if isinstance(message, Ended):
                    return message.judged
                _send(line, _turn(part.node, message, door))
    raise Unavailable("the lead of the link test went away before it was over")


def opened(address: str) -> socket.socket:
    """A door for partners at `address`, or at all of this host's where it is not one of them. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, 0), family=family, backlog=16)
    except OSError as error:
        # Behind address translation the address others use is not one of this host's own.
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        return socket.create_server(("", 0), family=family, backlog=16)


def _heard(line: socket.socket, lines: io.IOBase, ends: float | None) -> bytes:
    """The lead's next line; empty when it went away."""
    line.settimeout(None if ends is None else max(0.1, ends - time.monotonic()))
    try:
        return lines.readline(LINE_MAX)
    except OSError as error:
        why = "said nothing for too long" if isinstance(error, TimeoutError) else f"went away: {error.strerror}"
        raise Unavailable(f"the lead of the link test {why}") from error


def _turn(node: str, turn: Turn | Ring, door: socket.socket) -> Done:
    if isinstance(turn, Ring):
        to = (turn.host, turn.port)
        return Done(go_round(Place(node, turn.peer, to, turn.token, turn.size, turn.seconds, turn.begins), door))
    if turn.calls:
        return Done(call(node, turn.peer, (turn.host, turn.port), turn.token, turn.seconds))
    answer(door, turn.token)
    return Done()


def _called(lead: tuple[str, int], wait_s: float) -> socket.socket:
    """A line to the lead, which may not be there yet."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            line = socket.create_connection(lead, timeout=max(0.1, deadline - time.monotonic()))
        except OSError as error:
            if time.monotonic() >= deadline:
                raise Unavailable(f"nobody leads at {lead[0]}:{lead[1]}: {error.strerror or error}") from error
            time.sleep(_CALL_AGAIN_S)
        else:
            line.settimeout(None)
            return line


def _send(line: socket.socket, message: Joined | Done) -> None:
    try:
        line.sendall(msgspec.json.encode(message) + b"\n")
    except OSError as error:
        raise Unavailable(f"the lead of the link test went away: {error.strerror or error}") from error
