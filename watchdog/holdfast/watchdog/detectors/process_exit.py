"""A worker process ended with a failure.

The first death of a round is reported the moment it is heard of, because healing starts with it. In synchronous
training one death brings others: deaths of the same round shortly after are symptoms and make no finding.
What is heard first is nearly always what happened first; when a later message tells of a better culprit (one
that died earlier, or the first one to be no victim itself), the finding is made again, naming that one.

A worker that the kernel killed for want of memory ends with signal 9, like one that somebody killed. The agent
tells the difference, as a rule a moment after the launcher told of the death: then the finding is made again.
"""

import re
import signal
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.membership import WorkerExited
from holdfast.api.policy import Policy
from holdfast.api.telemetry import NodeReport, ProcessKilledForMemory
from holdfast.watchdog.detectors.round_in_force import RoundInForce
from holdfast.watchdog.sample import Exited, Reported, RoundStarted, RoundStopped, Sample

# Survivors of a death fail in their next collective: within 7-27 ms with gloo on one machine, plus the time an
# interpreter takes to end. Later than this, nothing has healed the round and the death is news again.
SYMPTOM_WINDOW_S = 5.0
CAUSE_CHARACTERS_MAX = 200
OUT_OF_MEMORY = "out of memory"
# Killing and death are told by two programs on one node, each with its age.
KILLING_WINDOW_S = 5.0
NODES_REMEMBERED = 1024
KILLINGS_REMEMBERED = 16

# How torch.distributed and its transports (gloo, NCCL) say that a peer, not this process, is the trouble.
# Source: the exception types of https://docs.pytorch.org/docs/stable/distributed.html and the result codes of
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html#ncclresult-t
_PEER_TROUBLE = re.compile(
    r"gloo/transport/"
    r"|Connection (?:closed|reset) by peer"
    r"|Timed out waiting \d+ms for (?:send|recv)"
    r"|\bDist(?:Backend|Network|Store)Error\b"
    r"|\bnccl(?:RemoteError|SystemError|InternalError)\b"
    r"|Watchdog caught collective operation timeout",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Death:
    """One exit, placed in time by the watchdog's clock."""

    exit: WorkerExited
    subject: Subject
    at: float
    killing: "_Killing | None" = None

    @property
    def confidence(self) -> Confidence:
        # NCCL's own watchdog thread aborts a process whose peer is gone, so not even a signal clears a victim.
        aborted = self.exit.signal in (None, signal.SIGABRT)
        if aborted and _PEER_TROUBLE.search(self.exit.error):
            return Confidence.UNKNOWN
        if self.exit.signal is not None:
            return Confidence.CERTAIN
        return Confidence.UNKNOWN if self.exit.exit_code is None else Confidence.PROBABLE

    def is_better_than(self, known: "_Death") -> bool:
        """Whether this is more likely what brought `known` about than the other way round."""
        if self.confidence is Confidence.UNKNOWN:
            return False
        return known.confidence is Confidence.UNKNOWN or self.at < known.at


@dataclass(frozen=True, slots=True)
class _Killing:
    """The kernel killed a process for want of memory."""

    event: ProcessKilledForMemory
    at: float

    def explains(self, death: _Death) -> bool:
        return death.exit.signal == signal.SIGKILL and abs(death.at - self.at) <= KILLING_WINDOW_S


class ProcessExitDetector:
    """Judges `Exited`, in the light of what `Reported` says. Silence proves nothing here."""

    heeds = (Exited, Reported, RoundStarted, RoundStopped)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._round = RoundInForce(policy.job)
        self._culprit: _Death | None = None
        self._dead: set[int] = set()
        # Outlives its round: the next one is shown at once, often before the agent tells of the killing.
        self._unexplained: _Death | None = None
        self._killings: OrderedDict[str, deque[_Killing]] = OrderedDict()  # by node

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """A finding for the first death of a round, for a better culprit of it, and for a better cause."""
        if isinstance(sample, Reported):
            return self._explained(sample.report, now) if sample.report.events else ()
        if self._round.follow(sample):
            self._culprit = None
            self._dead.clear()
        if not isinstance(sample, Exited) or not self._round.counts(sample.exit.round):
            return ()
        if sample.exit.rank in self._dead:
            return ()  # told again after a reconnect
        self._dead.add(sample.exit.rank)
        subject = Subject(self._job, node=sample.node, member=sample.member, rank=sample.exit.rank)
        death = _Death(sample.exit, subject, at=now - max(0.0, sample.exit.age_s))
        if not self._is_news(death):
            return ()
        self._culprit = death
        explained = self._in_the_light_of_killings(death)
        self._unexplained = death if explained.killing is None else None
        return (_finding(explained),)

    def elapse(self, now: float) -> Sequence[Finding]:
        return ()

    def next_wakeup(self) -> float | None:
        return None

    def _explained(self, report: NodeReport, now: float) -> Sequence[Finding]:
        """The culprit's finding again, when a report says that the kernel killed it."""
        for event in report.events:
            if isinstance(event, ProcessKilledForMemory):
                self._remember(report.node, _Killing(event, now - max(0.0, event.age_s)))
        death = self._unexplained
        if death is None or death.subject.node != report.node:
            return ()
        explained = self._in_the_light_of_killings(death)
        if explained.killing is None:
            return ()
        self._unexplained = None
        return (_finding(explained),)

    def _in_the_light_of_killings(self, death: _Death) -> _Death:
        killings = self._killings.get(death.subject.node or "", ())
        return replace(death, killing=next((each for each in killings if each.explains(death)), None))

    def _remember(self, node: str, killing: _Killing) -> None:
        self._killings.setdefault(node, deque(maxlen=KILLINGS_REMEMBERED)).append(killing)
        self._killings.move_to_end(node)
        if len(self._killings) > NODES_REMEMBERED:
            self._killings.popitem(last=False)

    def _is_news(self, death: _Death) -> bool:
        known = self._culprit
        return known is None or death.at > known.at + SYMPTOM_WINDOW_S or death.is_better_than(known)


def cause_of(exit: WorkerExited) -> str:
    """What deaths of the same class have in common: "signal 9 (SIGKILL)", "exit code 1: <last line of error>"."""
    if exit.signal is not None:
        return f"signal {exit.signal}{_signal_name(exit.signal)}"
    if exit.exit_code is None:
        return "exit status Unknown"
    lines = exit.error.strip().splitlines()
    says = lines[-1].strip()[:CAUSE_CHARACTERS_MAX] if lines else ""
    return f"exit code {exit.exit_code}: {says}" if says else f"exit code {exit.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""  # a real-time signal has no name


def _finding(death: _Death) -> Finding:
    cause = cause_of(death.exit)
    evidence = [
        Evidence(f"launcher {death.subject.member}", f"rank {death.exit.rank} ended with {cause}", death.at)
    ]
    if (killing := death.killing) is not None:
        cause = OUT_OF_MEMORY
        says = f"process {killing.event.pid} ({killing.event.name}) was killed by the kernel for memory"
        evidence.append(Evidence(f"kernel of node {death.subject.node}", says, killing.at))
    if death.confidence is Confidence.UNKNOWN and death.exit.error:
        evidence.append(
            Evidence("worker error", "it names a peer's failure: the worker may be a victim", death.at)
        )
    return Finding(
        kind=FindingKind.PROCESS_EXIT,
        subject=death.subject,
        cause=cause,
        evidence=tuple(evidence),
        confidence=death.confidence,
        began_at=death.at,
        round=death.exit.round,
        error=death.exit.error,
    )
