"""What the lead of a link test and its members say to each other: one JSON object a line."""

from typing import Final

import msgspec

from holdfast.agent.linktest.judgement import Measured
from holdfast.api.selftest import Judged

LINE_MAX = 1 << 22  # bytes; what a test of thousands of nodes with bad links comes to fits


class Joined(msgspec.Struct, frozen=True, tag=True):
    """Member to lead: it takes part; partners reach it at `host`, empty: where the call came from. `token` is what
    the test's lead asks for, empty where it asks for none.
    """

    node: str
    port: int
    host: str = ""
    token: str = ""


class Turn(msgspec.Struct, frozen=True, tag=True):
    """Lead to member: measure with `peer` now. `calls`: you connect to it, at `host` and `port`, and tell the
    result; else it connects to you. `token` opens the connection. `seconds`: how long bytes flow, in both
    directions together.
    """

    peer: str
    calls: bool
    host: str
    port: int
    token: str
    seconds: float


class Ring(msgspec.Struct, frozen=True, tag=True):
    """Lead to member: be one of a ring of `size` now. Send to `peer`, at `host` and `port`, who waits for the
    `token`; whoever shows it to you sends to you. Who `begins` ends it, after `seconds`.
    """

    peer: str
    host: str
    port: int
    token: str
    size: int
    seconds: float
    begins: bool


class Done(msgspec.Struct, frozen=True, tag=True):
    """Member to lead: the turn, or the ring, is over. `measured` is what who called, or sent, has seen."""

    measured: Measured | None = None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Lead to member: the test is over."""

    judged: Judged


ToLead = Joined | Done
ToMember = Turn | Ring | Ended
TO_LEAD: Final[msgspec.json.Decoder[ToLead]] = msgspec.json.Decoder(ToLead)
TO_MEMBER: Final[msgspec.json.Decoder[ToMember]] = msgspec.json.Decoder(ToMember)
