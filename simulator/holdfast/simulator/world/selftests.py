"""Self-tests as a simulated launcher makes them: when no worker runs, with an answer or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.api.event import MemberTested
from holdfast.api.selftest import TOPOLOGY, BadLink, CheckResult, Judged, TestWanted, Verdict

if TYPE_CHECKING:
    from holdfast.simulator.world.member import SimulatedMember

NEVER_ANSWERS: Final = 0.05


class SelfTests:
    """Those of one member."""

    def __init__(self, member: SimulatedMember) -> None:
        self._member = member
        self._wanted: TestWanted | None = None

    def ask(self, wanted: TestWanted) -> None:
        """The watchdog asks for one over the member's connection."""
        member, connection = self._member, self._member.connection

        def arrive() -> None:
            if member.is_reached_by(connection):
                self._wanted = wanted
                self._test(wanted)

        member.world.after(member.world.tempo.message_s(), arrive)

    def _test(self, wanted: TestWanted) -> None:
        """Begin once no worker runs; some never answer."""
        member, world = self._member, self._member.world
        if not member.alive or self._wanted is not wanted:
            return
        if member.round is not None:
            world.after(0.5, lambda: self._test(wanted))
        elif world.sound or world.draw.random() > NEVER_ANSWERS:
            world.after(world.tempo.test_s(), lambda: self._answer(wanted))

    def _answer(self, wanted: TestWanted) -> None:
        member, world = self._member, self._member.world
        if not member.alive or self._wanted is not wanted:
            return
        verdict = world.verdict_of(member)
        if member.round is not None:
            verdict = Verdict.UNKNOWN  # a round came between
        checks: tuple[CheckResult, ...] = ()
        if member.is_misfit and verdict is not Verdict.UNKNOWN:
            verdict = Verdict.FAILED
            checks = (CheckResult(TOPOLOGY, "node", verdict, "1 GPU in the largest NVLink domain", 0.1),)
        links = None
        if wanted.links is not None and wanted.links.leads and verdict is not Verdict.UNKNOWN:
            links = self._judged(wanted.links.members, verdict)
        event = MemberTested(member.name, wanted.number, wanted.level, verdict, checks, links=links)
        member.send_and_remember(lambda: world.carry_out(world.job.record(event, world.now)))

    def _judged(self, members: tuple[str, ...], verdict: Verdict) -> Judged:
        """What it found as the lead of a test of links: a link, a node, or somebody who did not come."""
        draw = self._member.world.draw
        if verdict is Verdict.PASSED:
            return Judged(verdict, says="all alike")
        one, other = (draw.choice(members) for _ in range(2))
        if one != other:
            return Judged(verdict, links=(BadLink(one, other, "slow"),), says="a link")
        node = draw.random() < 0.5
        return Judged(verdict, {one: "slow"} if node else {}, says="a node", absent=() if node else (one,))
