"""Self-tests as a simulated launcher makes them: when no worker runs, with an answer or without."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from holdfast.api.event import MemberTested
from holdfast.api.round import Round
from holdfast.api.selftest import TOPOLOGY, BadLink, CheckResult, Judged, TestWanted, Verdict
from holdfast.simulator.world.line import Line


class Tested(Protocol):
    """The member whose launcher makes them. `round` is the one that its workers are in."""

    name: str
    line: Line
    alive: bool
    is_misfit: bool

    @property
    def round(self) -> Round | None: ...


class SelfTests:
    """Those of one member. `answers`: whether the one that begins will; `verdict`: what it says of the devices."""

    def __init__(self, member: Tested, *, answers: Callable[[], bool], verdict: Callable[[], Verdict]) -> None:
        self._member, self._line, self._agenda = member, member.line, member.line.agenda
        self._answers, self._verdict = answers, verdict
        self._wanted: TestWanted | None = None

    def ask(self, wanted: TestWanted) -> None:
        """The watchdog asks for one over the member's connection."""
        self._line.receive(partial(self._begin, wanted))

    def _begin(self, wanted: TestWanted) -> None:
        self._wanted = wanted
        self._test(wanted)

    def _test(self, wanted: TestWanted) -> None:
        """Start once no worker runs; some never answer."""
        if not self._member.alive or self._wanted is not wanted:
            return
        if self._member.round is not None:
            self._agenda.after(0.5, partial(self._test, wanted))
        elif self._answers():
            self._agenda.after(self._agenda.tempo.test_s(), partial(self._answer, wanted))

    def _answer(self, wanted: TestWanted) -> None:
        member = self._member
        if not member.alive or self._wanted is not wanted:
            return
        verdict = self._verdict()
        if member.round is not None:
            verdict = Verdict.UNKNOWN  # a round came between
        checks: tuple[CheckResult, ...] = ()
        if member.is_misfit and verdict is not Verdict.UNKNOWN:
            verdict = Verdict.FAILED
            checks = (CheckResult(TOPOLOGY, "node", verdict, "1 GPU in the largest NVLink domain", 0.1),)
        links = None
        if wanted.links is not None and wanted.links.leads and verdict is not Verdict.UNKNOWN:
            links = self._judged(wanted.links.members, verdict)
        self._line.tell(MemberTested(member.name, wanted.number, wanted.level, verdict, checks, links=links))

    def _judged(self, members: tuple[str, ...], verdict: Verdict) -> Judged:
        """What it found as the lead of a test of links: a link, a node, or somebody who did not come."""
        draw = self._agenda.draw
        if verdict is Verdict.PASSED:
            return Judged(verdict, says="all alike")
        one, other = (draw.choice(members) for _ in range(2))
        if one != other:
            return Judged(verdict, links=(BadLink(one, other, "slow"),), says="a link")
        node = draw.random() < 0.5
        return Judged(verdict, {one: "slow"} if node else {}, says="a node", absent=() if node else (one,))
