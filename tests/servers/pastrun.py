"""A run that was: three nodes and a spare, one loses a GPU, a worker is killed, a node is taken away."""

from collections.abc import Iterator

import msgspec

from holdfast.api.event import (
    CheckpointRecorded,
    ClockTicked,
    Event,
    FindingMade,
    JobSubmitted,
    Journaled,
    MemberEntered,
    MemberJoined,
    MemberLeft,
    NodeDeparting,
    RestoreReported,
    RoundProgressed,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import GpuHour, Policy
from holdfast.api.round import Round
from holdfast.watchdog import brain
from holdfast.watchdog.brain.step import turn
from holdfast.watchdog.journal.replay import Replayed

JOB = "team/run"
POLICY = Policy(
    job=JOB,
    nodes_min=2,
    nodes_max=3,
    spares=1,
    processes_per_node=8,
    checkpoint_uri="/c",
    gpu_hour=GpuHour(2.0, "USD"),
)
STEP_S = 10.0


class PastRun:
    """Its journal, and the steps of the brain over it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.state = brain.initial(JOB)
        self.lines: list[Journaled] = []

    def tell(self, event: Event) -> None:
        line = Journaled(len(self.lines) + 1, self.now, event)
        self.lines.append(line)
        self.state = turn(brain, self.state, event, self.now).state

    def join(self, *numbers: int) -> None:
        for number in numbers:
            name = f"node-{number}"
            self.tell(MemberJoined(name, name, f"boot-{self.now}", f"10.0.0.{number}", 8, (7000, 7001), warm=True))

    @property
    def round(self) -> Round:
        assert isinstance(self.state.desired, Round), self.state.desired
        return self.state.desired

    def enter(self, restored: int) -> None:
        """All are in the newest round after 20 s, and begin 10 s later."""
        self.now += 20.0
        for share in self.round.ranks:
            self.tell(MemberEntered(share.member, self.round.number, reentrant=True))
        self.now += 10.0
        self.tell(RestoreReported(self.round.number, restored))

    def train(self, first: int, last: int) -> None:
        """Steps of 10 s, told once in ten."""
        for step in range(first, last + 1):
            self.now += STEP_S
            if step % 10 == 0 or step == first:
                self.tell(RoundProgressed(self.round.number, step, completed_at=self.now))

    def find(self, kind: FindingKind, node: str | None, cause: str, ago_s: float = 5.0) -> None:
        found = Finding(
            kind,
            Subject(JOB, node=node, member=node),
            cause,
            (Evidence("test", "seen", self.now),),
            Confidence.CERTAIN,
            self.now - ago_s,
            round=self.round.number,
        )
        self.tell(FindingMade(found))

    def replayed(self) -> Iterator[Replayed]:
        """As a walk over its journal gives it."""
        state = brain.initial(JOB)
        for line in self.lines:
            step = turn(brain, state, line.event, line.at)
            state = step.state
            yield Replayed(line, step.effects, step.reason, state)


def past_run() -> PastRun:
    """A GPU that falls off its bus after 200 steps, a death of a process after 400, and a notice after 500."""
    run = PastRun()
    run.tell(JobSubmitted(POLICY))
    run.join(0, 1, 2, 3)
    run.now += 30.0
    run.tell(ClockTicked())
    run.enter(0)
    run.train(1, 200)
    run.tell(CheckpointRecorded(run.round.number, 190, "/c", stall_s=2.0, took_s=40.0))
    run.now += 5.0
    run.find(FindingKind.XID, run.round.ranks[0].member, "xid 79")
    run.now += 15.0
    run.tell(ClockTicked())
    run.enter(190)
    run.train(191, 400)
    run.tell(CheckpointRecorded(run.round.number, 390, "/c", stall_s=4.0, took_s=60.0))
    run.now += 5.0
    run.find(FindingKind.PROCESS_EXIT, run.round.ranks[-1].member, "signal 9 (SIGKILL)")
    run.now += 15.0
    run.tell(ClockTicked())
    run.enter(390)
    run.train(391, 500)
    run.tell(NodeDeparting(run.round.ranks[-1].member, "spot", 120.0))
    run.train(501, 510)
    run.tell(MemberLeft(run.round.ranks[-1].member, "preempted"))
    run.now += 15.0
    run.tell(ClockTicked())
    return run


def journal_bytes(run: PastRun) -> bytes:
    """Its lines as a watchdog tells them."""
    return b"\n".join(msgspec.json.encode(each) for each in run.lines)
