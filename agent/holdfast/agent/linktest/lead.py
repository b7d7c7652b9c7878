"""The lead of a link test: waits for the members, hands out pairs round by round, and judges."""

import asyncio
import errno
import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.agent.linktest.judgement import Measured, better, doubtful, judge, with_rings
from holdfast.agent.linktest.measurement import SILENT_S
from holdfast.agent.linktest.schedule import Pair, disjoint, groups, rounds
from holdfast.agent.linktest.wire import LINE_MAX, TO_LEAD, Done, Ended, Joined, Ring, ToMember, Turn
from holdfast.api.decoding import decode
from holdfast.api.errors import InvalidInput, Malformed, Problem, Unavailable
from holdfast.api.selftest import Judged, UsualLink, Verdict

_JOIN_S: Final = 10.0  # from a call to its first line


@dataclass(frozen=True, slots=True)
class Order:
    """How a test is done: of so many nodes, `seconds` of bytes for each pair, the `turn` of the schedule; members
    are waited for `wait_s` seconds. With `names` only these may take part, who show `token`, and those who came in
    time are measured without the others. After the pairs, bytes go round in rings for `gang_s` seconds (0: they do
    not). Few links are compared with the `usual` one. It is over `limit_s` seconds after it began; what was
    measured counts.
    """

    nodes: int
    seconds: float
    turn: int
    wait_s: float
    names: frozenset[str] | None = None
    token: str = ""
    limit_s: float = math.inf
    gang_s: float = 0.0
    usual: UsualLink | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A node that takes part."""

    joined: Joined
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def tell(self, message: ToMember) -> None:
        """Goes out when it can; whoever is gone is noticed when it does not answer."""
        if not self.writer.is_closing():
            self.writer.write(msgspec.json.encode(message) + b"\n")


class Lead:
    """One test. `listening` is called with the port that members are to call."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._members: dict[str, Member] = {}
        self._complete = asyncio.Event()
        self._ends = math.inf  # on the loop's clock

    async def run(self, host: str, port: int, listening: Callable[[int], None]) -> Judged:
        """Wait for the members, measure, judge, and tell everyone.

        Raises Unavailable when not all members come in time (of a test whose members are named: not two of them),
        or the port cannot be had.
        """
        self._ends = asyncio.get_running_loop().time() + self._order.limit_s
        server = await self._opened(host, port)
        listening(server.sockets[0].getsockname()[1])
        try:
            await self._gather()
            absent = sorted((self._order.names or frozenset()) - self._members.keys())
            judged = msgspec.structs.replace(await self._measure(), absent=tuple(absent))
            for member in self._members.values():
                member.tell(Ended(judged))
            return judged
        finally:
            server.close()
            for member in self._members.values():
                member.writer.close()

    async def _opened(self, host: str, port: int) -> asyncio.Server:
        try:
            return await asyncio.start_server(self._greet, host, port, limit=LINE_MAX)
        except OSError as error:
            # Behind address translation the address others use is not one of this host's own.
            if error.errno == errno.EADDRNOTAVAIL and host:
                return await self._opened("", port)
            raise Unavailable(f"cannot listen at {host}:{port}: {error.strerror}") from error

    async def _gather(self) -> None:
        """Wait for the members. Raises Unavailable when too few come."""
        order = self._order
        try:
            await asyncio.wait_for(self._complete.wait(), order.wait_s)
        except TimeoutError:
            self._complete.set()  # who comes now is late
            if order.names is not None and len(self._members) >= 2:
                return
            came = ", ".join(sorted(self._members)) or "nobody"
            says = f"{len(self._members)} of {order.nodes} nodes came in {order.wait_s:g} s: {came}"
            raise Unavailable(says) from None

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            joined = decode(TO_LEAD, await asyncio.wait_for(reader.readline(), _JOIN_S))
        except (TimeoutError, ValueError, Malformed, OSError):
            writer.close()
            return
        if not isinstance(joined, Joined) or not self._may_join(joined):
            writer.close()
            return
        if joined.node in self._members or self._complete.is_set():
            says = "this node takes part already, or the test has begun"
            writer.write(msgspec.json.encode(Ended(Judged(Verdict.UNKNOWN, says=says))) + b"\n")
            writer.close()
            return
        seen = writer.get_extra_info("peername")[0]
        joined = msgspec.structs.replace(joined, host=joined.host or seen)
        self._members[joined.node] = Member(joined, reader, writer)
        if len(self._members) == self._order.nodes:
            self._complete.set()

    def _may_join(self, joined: Joined) -> bool:
        names, token = self._order.names, self._order.token
        is_named = names is None or joined.node in names
        return is_named and secrets.compare_digest(joined.token.encode(), token.encode())

    async def _measure(self) -> Judged:
        # By name, so that the next turn of the schedule goes on where this one ended.
        members = [self._members[node] for node in sorted(self._members)]
        measured = await self._pairs(members, rounds(len(members), self._order.turn))
        judged = judge(measured, self._order.usual)
        if doubts := doubtful(measured, judged):
            place = {member.joined.node: at for at, member in enumerate(members)}
            pairs = disjoint((place[each.one], place[each.other]) for each in doubts)
            judged = judge(better(measured, await self._pairs(members, pairs)), self._order.usual)
        if not self._order.gang_s or not self._has_time_for(self._order.gang_s):
            return judged
        ways = await self._rings(members)
        told = with_rings(judged, ways)
        if doubtful(ways, told) and self._has_time_for(self._order.gang_s):
            told = with_rings(judged, better(ways, await self._rings(members)))
        return told

    async def _pairs(self, members: Sequence[Member], order: Iterable[Sequence[Pair]]) -> list[Measured]:
        """What the pairs measured, round by round, as far as there was time."""
        measured: list[Measured] = []
        for pairs in order:
            if not self._has_time_for(self._order.seconds):
                break
            measured += await asyncio.gather(*(self._pair(members, pair) for pair in pairs))
        return measured

    async def _rings(self, members: Sequence[Member]) -> list[Measured]:
        """All ways of all rings, which go round side by side."""
        rings = await asyncio.gather(*(self._ring(members, places) for places in groups(len(members))))
        return [each for ring in rings for each in ring]

    def _has_time_for(self, seconds: float) -> bool:
        return asyncio.get_running_loop().time() + 2 * seconds <= self._ends

    async def _ring(self, members: Sequence[Member], places: Sequence[int]) -> list[Measured]:
        """All ways of one ring; of who says nothing it is known that it did not."""
        ring = [members[place] for place in places]
        token, seconds = secrets.token_hex(16), self._order.gang_s
        after = [*ring[1:], ring[0]]
        for each, peer in zip(ring, after, strict=True):
            to = peer.joined
            each.tell(Ring(to.node, to.host, to.port, token, len(ring), seconds, each is ring[0]))
        told = await asyncio.gather(*(self._done(each, seconds) for each in ring))
        measured = []
        for each, peer, done in zip(ring, after, told, strict=True):
            says = f"{each.joined.node} told nothing of a ring of {len(ring)}"
            silent = Measured(one=each.joined.node, other=peer.joined.node, error=says)
            measured.append(silent if done is None or done.measured is None else done.measured)
        return measured

    async def _pair(self, members: Sequence[Member], pair: Pair) -> Measured:
        one, other = (members[place] for place in pair)
        token = secrets.token_hex(16)
        for each, peer, calls in ((other, one, False), (one, other, True)):
            to = peer.joined
            each.tell(Turn(to.node, calls, to.host, to.port, token, self._order.seconds))
        told = await asyncio.gather(*(self._done(each, self._order.seconds) for each in (one, other)))
        if isinstance(told[0], Done) and told[0].measured is not None:
            return told[0].measured
        silent = [each.joined.node for each, done in zip((one, other), told, strict=True) if done is None]
        says = f"{', '.join(silent) or one.joined.node} told nothing"
        return Measured(one=one.joined.node, other=other.joined.node, error=says)

    async def _done(self, member: Member, seconds: float) -> Done | None:
        """The member's word that its turn is over; None when it is silent for too long, or gone."""
        left_s = self._ends - asyncio.get_running_loop().time()
        limit_s = min(2 * seconds + 4 * SILENT_S, max(0.0, left_s))
        try:
            answer = decode(TO_LEAD, await asyncio.wait_for(member.reader.readline(), limit_s))
        except (TimeoutError, ValueError, Malformed, OSError):
            member.writer.close()  # what it says later would be taken for the answer to another turn
            return None
        return answer if isinstance(answer, Done) else None


def checked(order: Order) -> Order:
    """The order. Raises InvalidInput."""
    problems = []
    if order.nodes < 2:
        problems.append(Problem(field="--nodes", value=order.nodes, fix="A link needs two nodes."))
    if not 0.2 <= order.seconds <= 3600:
        problems.append(Problem(field="--seconds", value=order.seconds, fix="Between 0.2 and 3600."))
    if not 0 <= order.gang_s <= 3600:
        problems.append(Problem(field="--gang", value=order.gang_s, fix="Between 0 and 3600."))
    if order.turn < 0:
        problems.append(Problem(field="--turn", value=order.turn, fix="0 or more."))
    if problems:
        raise InvalidInput(*problems)
    return order
