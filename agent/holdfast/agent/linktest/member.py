"""A node that takes part in a link test: it measures with whom the lead says."""

import socket
import time
from typing import Final

import msgspec

from holdfast.agent.linktest.judgement import Judged
from holdfast.agent.linktest.measurement import answer, call
from holdfast.agent.linktest.wire import LINE_MAX, TO_MEMBER, Done, Ended, Joined, Turn
from holdfast.api.decoding import decode
from holdfast.api.errors import Unavailable

_CALL_AGAIN_S: Final = 0.2


def take_part(node: str, lead: tuple[str, int], address: str, wait_s: float) -> Judged:
    """Join, measure until the test is over, and return what it came to.

    The lead is waited for `wait_s` seconds. `address`: where partners reach this node; empty: from where the lead
    sees it come. Raises Unavailable when the lead is not there, or
    goes, and Malformed when what answers there is no lead.
    """
    with socket.create_server((address, 0), family=socket.AF_INET, backlog=16) as door:
        line = _called(lead, wait_s)
        with line, line.makefile("rb", buffering=1 << 16) as lines:
            _send(line, Joined(node, door.getsockname()[1], address))
            while heard := lines.readline(LINE_MAX):
                message = decode(TO_MEMBER, heard)
                if isinstance(message, Ended):
                    return message.judged
                _send(line, _turn(node, message, door))
    raise Unavailable("the lead of the link test went away before it was over")


def _turn(node: str, turn: Turn, door: socket.socket) -> Done:
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
