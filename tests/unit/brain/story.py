"""A job told event by event: the builder the brain's tests share.

`Story` keeps the state and the clock; each method is one fact. Members are `node-N` on node `node-N`.
"""

import msgspec

from holdfast.api.checkpoint import StoredCheckpoint
from holdfast.api.event import (
    CheckpointRecorded,
    ClockTicked,
    Event,
    FindingMade,
    InterventionRequested,
    JobSubmitted,
    MemberDeparting,
    MemberEntered,
    MemberFinished,
    MemberJoined,
    MemberLeft,
    NodeChanged,
    PodChanged,
    RestoreReported,
    RoundBegan,
    RoundProgressed,
    StorageListed,
    WatchdogStarted,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import Incident
from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.membership import SaveWanted
from holdfast.api.plan import NodeState, Plan, PodEnd, PodState
from holdfast.api.policy import Policy
from holdfast.api.round import Round
from holdfast.api.status import JobPhase
from holdfast.api.telemetry import NodeReport, XidRaised
from holdfast.watchdog.brain import advance, initial, next_wakeup
from holdfast.watchdog.brain.requests import pending
from holdfast.watchdog.brain.step import Answered, Effect, Save, Show, Step
from holdfast.watchdog.detectors.detector import Reported
from holdfast.watchdog.detectors.gpu_fault import GpuFaultDetector

JOB = "team/run"


def policy(**fields: object) -> Policy:
    return Policy(**{"job": JOB, "nodes_min": 1, "nodes_max": 3, "checkpoint_uri": "/ckpt", **fields})  # type: ignore[arg-type]


class Story:
    """One job's life so far."""

    def __init__(self, **fields: object) -> None:
        self.now = 1000.0
        self.state = initial(JOB)
        self.effects: list[Effect] = []
        self.last: Step | None = None
        self.tell(JobSubmitted(policy(**fields)))

    def tell(self, event: Event) -> Step:
        self.last = advance(self.state, event, self.now)
        self.state = self.last.state
        self.effects.extend(self.last.effects)
        return self.last

    def wait(self, seconds: float) -> "Story":
        """Let time pass, waking the brain whenever it asked for it."""
        end = self.now + seconds
        while (at := next_wakeup(self.state)) is not None and at <= end:
            self.now = max(self.now, at)
            before = self.state
            self.tell(ClockTicked())
            if self.state == before:
                break
        self.now = end
        return self

    def join(self, *numbers: int, boot: str = "a", held: int | None = None, warm: bool = True) -> "Story":
        for number in numbers:
            name = f"node-{number}"
            ports = (7000 + 10 * number, 7001 + 10 * number)
            host = f"10.0.0.{number}"
            self.tell(MemberJoined(name, name, boot, host, self.size, ports, warm, held, transfer=f"{host}:7900"))
        return self

    @property
    def size(self) -> int:
        return self.state.policy.processes_per_node if self.state.policy else 1

    @property
    def round(self) -> Round:
        assert isinstance(self.state.desired, Round), self.state.desired
        return self.state.desired

    @property
    def members(self) -> list[str]:
        return [share.member for share in self.round.ranks]

    @property
    def incident(self) -> Incident:
        return self.state.incidents[-1]

    def shown(self) -> list[object]:
        return [effect.desired for effect in self.effects if isinstance(effect, Show)]

    def run(self, step: int = 1, *, reentrant: bool = True, restored: int | None = 0) -> "Story":
        """The newest round is entered everywhere and every rank completes `step`."""
        round = self.round
        self.now += 0.1
        for share in round.ranks:
            self.tell(MemberEntered(share.member, round.number, reentrant))
        if reentrant:
            self.tell(RestoreReported(round.number, restored))
            self.tell(RoundProgressed(round.number, step))
        return self

    def show_sign(self, number: int = 1) -> "Story":
        """A worker of a script that publishes nothing shows its first sign of training."""
        self.tell(RoundBegan(f"node-{number}", self.round.number))
        return self

    def commit(self, step: int, wanted: int | None = None) -> "Story":
        self.tell(CheckpointRecorded(self.round.number, step, "/ckpt", wanted))
        return self

    def stored(self, *steps: int, count: int | None = None, unhealthy: tuple[int, ...] = ()) -> "Story":
        """Rank 0 tells that storage holds checkpoints of these steps, in rising order."""
        number = self.round.number
        line = tuple(
            StoredCheckpoint(step, number, f"step-{step:08d}", step not in unhealthy) for step in reversed(steps)
        )
        self.tell(StorageListed(number, "/ckpt", len(line) if count is None else count, line))
        return self

    def save(self, step: int) -> "Story":
        """The checkpoint that was asked for last is committed."""
        return self.commit(step, self.wanted[-1].number)

    @property
    def wanted(self) -> list[SaveWanted]:
        return [effect.wanted for effect in self.effects if isinstance(effect, Save)]

    @property
    def plan(self) -> Plan:
        assert self.state.plan is not None
        return self.state.plan

    def node(self, number: int, state: NodeState, reason: str = "", rack: str = "") -> "Story":
        self.tell(NodeChanged(f"node-{number}", state, reason, rack))
        return self

    def drain(self, number: int) -> "Story":
        return self.node(number, NodeState.DRAINING, "cordoned by an admin")

    def pod(self, number: int, state: PodState, reason: str = "", end: PodEnd | None = None) -> "Story":
        self.tell(PodChanged(f"node-{number}", f"node-{number}", state, reason, end))
        return self

    def told_to_end(self, number: int, within_s: float = 25.0) -> "Story":
        self.tell(MemberDeparting(f"node-{number}", "SIGTERM", within_s))
        return self

    def resubmit(self, **fields: object) -> "Story":
        assert self.state.policy is not None
        self.tell(JobSubmitted(msgspec.structs.replace(self.state.policy, **fields)))
        return self

    def find(self, kind: FindingKind, node: int, **fields: object) -> "Story":
        """A detector judged `node`; the round is the newest unless told otherwise."""
        name = f"node-{node}"
        share = self.state.round.share_of(name) if self.state.round else None
        known = {
            "kind": kind,
            "subject": Subject(JOB, node=name, member=name, rank=share.first_rank if share else None),
            "cause": "signal 9 (SIGKILL)",
            "evidence": (Evidence("test", "it was seen", self.now),),
            "confidence": Confidence.CERTAIN,
            "began_at": self.now - 0.5,
            "round": self.state.round.number if self.state.round else None,
        }
        self.tell(FindingMade(Finding(**{**known, **fields})))  # type: ignore[arg-type]
        return self

    def die(self, node: int, **fields: object) -> "Story":
        return self.find(FindingKind.PROCESS_EXIT, node, **fields)

    def raise_in_script(self, node: int, cause: str = "KeyError: 'x' (train.py:7)", alike: str = "") -> "Story":
        """The script of a rank on `node` raised an exception, or all of them did so alike."""
        share = self.round.share_of(f"node-{node}")
        assert share is not None
        subject = Subject(JOB, rank=share.first_rank)
        error = f"Traceback (most recent call last):\n{cause}"
        raised = {"error": error, "trace": "c0ffee", "began": True}
        return self.find(FindingKind.USER_CODE, node, subject=subject, cause=cause, alike=alike, **raised)

    def lose(self, node: int) -> "Story":
        return self.find(FindingKind.MEMBER_LOST, node, cause="connection closed")

    def xid(self, node: int, code: int, **fields: object) -> "Story":
        """As the detector finds it."""
        raised = NodeReport(f"node-{node}", "boot", 1, events=(XidRaised("GPU-0", code, 0.0),))
        assert self.state.policy is not None
        for found in GpuFaultDetector(self.state.policy).observe(Reported(raised), self.now):
            judged = {"asks": found.asks, "confidence": found.confidence, **fields}
            self.find(FindingKind.XID, node, cause=found.cause, xid=code, round=None, **judged)
        return self

    def leave(self, node: int) -> "Story":
        self.tell(MemberLeft(f"node-{node}", "stopped"))
        return self

    def gone(self, node: int) -> "Story":
        self.tell(NodeChanged(f"node-{node}", NodeState.GONE, "deleted"))
        return self

    def run_on(self, step: int) -> "Story":
        """The round goes on to `step`."""
        self.tell(RoundProgressed(self.round.number, step))
        return self

    def finish_one(self, number: int) -> "Story":
        self.tell(MemberFinished(f"node-{number}", self.round.number))
        return self

    def fail(self) -> "Story":
        """The same fault again and again, until a human is asked."""
        for _ in range(10):
            if self.state.phase is JobPhase.FAILED:
                break
            self.die(1).wait(600)
        return self

    def finish(self) -> "Story":
        round = self.round
        for share in round.ranks:
            self.tell(MemberFinished(share.member, round.number))
        return self

    def restart_watchdog(self) -> "Story":
        self.tell(WatchdogStarted())
        return self

    def ask(self, action: InterventionAction, id: str = "i1", **fields: object) -> InterventionOutcome:
        request = InterventionRequest(id, JOB, action, "asked", **fields)  # type: ignore[arg-type]
        step = self.tell(InterventionRequested(request))
        said = (each.outcome for each in step.effects if isinstance(each, Answered) and each.outcome.id == id)
        return next(said, InterventionOutcome(id, InterventionState.PENDING, pending(self.state, id) or ""))

    def answer(self, id: str = "i1") -> InterventionOutcome | None:
        """What the intervention came to in the end."""
        said = [each.outcome for each in self.effects if isinstance(each, Answered) and each.outcome.id == id]
        return said[-1] if said else None


def running(nodes: int = 3, *, spares: int = 0, step: int = 50, commit: int = 40, **fields: object) -> Story:
    """A job that trains with `nodes` members and `spares` warm ones beside them."""
    story = Story(nodes_max=nodes, spares=spares, **fields)
    story.join(*range(1, nodes + spares + 1)).run(1)
    story.commit(commit)
    story.tell(RoundProgressed(story.round.number, step))
    return story
