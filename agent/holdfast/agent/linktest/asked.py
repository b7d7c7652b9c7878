"""A test of links that the watchdog asks for: this member's part of it, read from the environment, and its answer.

The part is in the environment and not among the words of the command, where every user of the host would read the
token.
"""

import asyncio
import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from holdfast.agent.linktest.lead import Lead, Order
from holdfast.agent.linktest.member import Part, take_part
from holdfast.api.decoding import decode
from holdfast.api.errors import HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.api.selftest import BadLink, Judged, LinkTest, Tested, TestLevel, Verdict

PART_VARIABLE: Final = "HOLDFAST_LINK_TEST"
"""In the environment of the process that tests: its `LinkTest`, as JSON."""
_PART: Final[msgspec.json.Decoder[LinkTest]] = msgspec.json.Decoder(LinkTest)

# The others' processes may have to import what a worker needs first; the rest of the time is for measuring.
_WAIT_SHARE: Final = 0.5
# An answer is one message to the watchdog: what is named beyond so many is counted in words.
NAMED_MAX: Final = 64
_SAYS_MAX: Final = 300
_ALL_SAY_MAX: Final = 2000


def answer_watchdog(node: str, address: str, number: int, result: Path) -> Judged:
    """Take part as the environment says, and write the answer to request `number` into `result`.

    Raises InvalidInput when the environment says nothing of it.
    """
    given = os.environ.get(PART_VARIABLE)
    if given is None:
        raise InvalidInput(Problem(field=PART_VARIABLE, value="", fix="The launcher sets it; use join instead."))
    asked = decode(_PART, given.encode())
    began = time.monotonic()
    verdict = Verdict.PASSED
    try:
        judged = fitted(_led(asked, node, address) if asked.leads else _joined(asked, node, address))
    except Unavailable as error:
        # Of a lead nobody knows why: perhaps the others were not asked. A member has failed to reach the others.
        verdict = Verdict.UNKNOWN if asked.leads else Verdict.FAILED
        judged = Judged(verdict, says=str(error))
        asked = msgspec.structs.replace(asked, leads=False)
    took_s = time.monotonic() - began
    if asked.leads:
        tested = Tested(number, TestLevel.LIGHT, judged.verdict, took_s, says=judged.says, links=judged)
    else:  # it has taken part; what came of it is for the lead to say
        tested = Tested(number, TestLevel.LIGHT, verdict, took_s, says=judged.says)
    # Whole or not at all: whoever reads it may look at any time.
    fresh = result.with_name(f"{result.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.msgpack.encode(tested))
    fresh.replace(result)
    return judged


def _joined(asked: LinkTest, node: str, address: str) -> Judged:
    part = Part(node, address, asked.limit_s * _WAIT_SHARE, asked.token, asked.limit_s)
    return take_part(part, (asked.host, asked.port))


def _led(asked: LinkTest, node: str, address: str) -> Judged:
    """Lead the test, and take part in it beside that: a lead is a node like the others."""

    def join() -> None:
        with contextlib.suppress(HoldfastError, OSError):  # the lead tells what is not there
            _joined(asked, node, address)

    names = frozenset(asked.members)
    wait_s = asked.limit_s * _WAIT_SHARE
    limits = (asked.limit_s, asked.gang_s, asked.usual)
    order = Order(len(names), asked.flow_s, 0, wait_s, names, asked.token, *limits)
    threading.Thread(target=join, name="member", daemon=True).start()
    return asyncio.run(Lead(order).run(asked.host, asked.port, lambda port: None))


def fitted(judged: Judged) -> Judged:
    """What was found, small enough for one message. Pure."""
    nodes = {node: says[:_SAYS_MAX] for node, says in list(judged.nodes.items())[:NAMED_MAX]}
    links = tuple(BadLink(each.one, each.other, each.says[:_SAYS_MAX]) for each in judged.links[:NAMED_MAX])
    says = judged.says if len(judged.says) <= _ALL_SAY_MAX else f"{judged.says[:_ALL_SAY_MAX]}…"
    return Judged(judged.verdict, nodes, links, says, judged.absent[:NAMED_MAX], judged.usual)
