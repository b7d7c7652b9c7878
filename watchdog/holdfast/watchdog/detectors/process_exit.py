"""A worker process ended with a failure.

The first death of a round is reported the moment it is heard of, because healing starts with it. In synchronous
training one death brings others: deaths of the same round shortly after are symptoms and make no finding.
What is heard first is nearly always what happened first; when a later message tells of a better culprit (one
that died earlier, or the first one to be no victim itself), the finding is made again, naming that one.

A Python exception that nothing outside the script explains is the script's own (`user_code`), and names no node;
so is an exit code, which the script chose as it does when it ends with success.

One exception is neither a node's nor the script's: that checkpoints are there and none can be restored. All ranks
raise it alike, so the first is told at once.

A failure that others may share waits for them: when every rank fails in one way, the fault is in what they share.
Before any sign of training waiting for a few seconds costs nothing. After it the wait is short, and over as soon
as one of the others is seen to miss its peer; what blames no node anyhow does not wait.

A worker that the kernel killed for want of memory ends with signal 9, like one that somebody killed. The agent
tells the difference, as a rule a moment after the launcher told of the death: then the finding is made again.
"""

import signal
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.membership import WorkerExited
from holdfast.api.policy import Policy
from holdfast.api.telemetry import NodeReport, ProcessKilledForMemory
from holdfast.watchdog.detectors.detector import (
    CollectiveBroke,
    Exited,
    Reported,
    RoundStarted,
    RoundStopped,
    Sample,
)
from holdfast.watchdog.detectors.round_in_force import RoundInForce
from holdfast.watchdog.detectors.user_code import DEVICE, NOTHING_TO_RESTORE, PEER, outside_of

# Survivors of a death fail in their next collective: within 7-27 ms with gloo on one machine, plus the time an
# interpreter takes to end. Later than this, nothing has healed the round and the death is news again.
SYMPTOM_WINDOW_S = 5.0
CAUSE_CHARACTERS_MAX = 200
OUT_OF_MEMORY = "out of memory"
OWN_LIMIT = "out of memory: the pod's own limit"
# Killing and death are told by two programs on one node, each with its age.
KILLING_WINDOW_S = 5.0
NODES_REMEMBERED = 1024
KILLINGS_REMEMBERED = 16

# For how long a failure before any sign of training waits for the other ranks. They read the same files, some
# later than others: beyond the least, a quarter of what the first one took.
ALIKE_S_MIN = 2.0
ALIKE_SHARE = 0.25
# And after it: ranks that trained are within a step of each other, and their interpreters end within this.
ALIKE_TRAINED_S = 1.0
# Signals that others send, as the kernel does when memory is short. Of ranks that trained they say nothing about
# what the ranks share; before that, what the script loads may be too much on every node.
_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM)
# What a shell, or a program between, ends with when a signal ended what it ran.
_SIGNALS_AS_CODES = range(129, 193)
# Ranks of large jobs that are named beside the first one.
ALSO_MAX = 64


@dataclass(frozen=True, slots=True)
class _Death:
    """One exit, placed in time by the watchdog's clock."""

    exit: WorkerExited
    subject: Subject
    at: float
    killing: "_Killing | None" = None

    @property
    def names_a_peer(self) -> bool:
        return PEER.told_by.search(self.exit.error) is not None

    @property
    def is_user_code(self) -> bool:
        """Whether the script raised an exception that nothing outside it explains."""
        exit = self.exit
        return bool(exit.exit_code and exit.raised) and outside_of(exit.raised, exit.error) is None

    @property
    def chose_its_code(self) -> bool:
        """Whether the script ended with a code of its own and nothing outside it explains why."""
        code = self.exit.exit_code
        chosen = bool(code) and code not in _SIGNALS_AS_CODES
        return chosen and outside_of(self.exit.raised, self.exit.error) is None

    @property
    def is_of_the_checkpoints(self) -> bool:
        """Whether the ranks found nothing that they could restore, where something is."""
        return NOTHING_TO_RESTORE.match(self.exit.raised) is not None

    @property
    def way(self) -> str:
        """What failures alike have in common: not the message, which may name the rank. Empty: it says nothing of
        other ranks."""
        exit = self.exit
        known = exit.exit_code is not None or exit.signal is not None
        sent = exit.began and exit.signal in _SENT_BY_OTHERS
        if not known or self.names_a_peer or self.is_of_the_checkpoints or sent:
            return ""
        if exit.raised:
            kind = exit.raised.partition(":")[0]
            return f"{kind} in {exit.place}" if exit.place else kind
        return cause_of(exit).partition(":")[0]

    @property
    def may_be_shared(self) -> bool:
        """Whether it matters if the other ranks fail in the same way. A crash in training concerns its node."""
        settled = self.is_user_code or self.exit.signal is not None or self.tells_of_device
        return bool(self.way) and not (self.exit.began and settled)

    @property
    def tells_of_device(self) -> bool:
        return outside_of(self.exit.raised, self.exit.error) is DEVICE

    @property
    def confidence(self) -> Confidence:
        # NCCL's own watchdog thread aborts a process whose peer is gone, so not even a signal clears a victim.
        aborted = self.exit.signal in (None, signal.SIGABRT)
        if aborted and self.names_a_peer:
            return Confidence.UNKNOWN
        if self.exit.signal is not None or self.is_user_code or self.is_of_the_checkpoints:
            return Confidence.CERTAIN
        return Confidence.UNKNOWN if self.exit.exit_code is None else Confidence.PROBABLE

    def is_better_than(self, known: "_Death") -> bool:
        """Whether this is more likely what brought `known` about than the other way round."""
        if self.confidence is Confidence.UNKNOWN:
            return False
        return known.confidence is Confidence.UNKNOWN or self.at < known.at


@dataclass(frozen=True, slots=True)
class _Company:
    """Who died with the culprit: every rank in one way (`alike`, `spread` over nodes), or some by one signal."""

    alike: str = ""
    spread: bool = False
    also: tuple[Subject, ...] = ()


@dataclass(frozen=True, slots=True)
class _Killing:
    """The kernel killed a process for want of memory."""

    event: ProcessKilledForMemory
    at: float

    def explains(self, death: _Death) -> bool:
        return death.exit.signal == signal.SIGKILL and abs(death.at - self.at) <= KILLING_WINDOW_S


class ProcessExitDetector:
    """Judges `Exited`, in the light of what `Reported` says. Silence proves nothing here."""

    subscribes_to: tuple[type[Sample], ...] = (Exited, CollectiveBroke, Reported, RoundStarted, RoundStopped)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._round = RoundInForce(policy.job)
        self._culprit: _Death | None = None
        self._dead: dict[int, tuple[Subject, int | None]] = {}  # who, and by which signal, if that is its own
        self._ended_well = False  # a rank of the round did, so that others may miss it
        self._began_at = 0.0
        self._ways: dict[int, str] = {}  # of the ranks that died: in which way
        self._held_until: float | None = None  # the culprit is not told yet
        # Outlives its round: the next one is shown at once, often before the agent tells of the killing.
        self._unexplained: tuple[_Death, _Company] | None = None
        self._killings: OrderedDict[str, deque[_Killing]] = OrderedDict()  # by node

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """A finding for the first death of a round, for a better culprit of it, and for a better cause."""
        if isinstance(sample, Reported):
            return self._explained(sample.report, now) if sample.report.events else ()
        if isinstance(sample, RoundStarted | RoundStopped):
            return self._follow(sample, now)
        if isinstance(sample, CollectiveBroke):
            return self._others_live() if self._round.counts(sample.failure.round) else ()
        if not isinstance(sample, Exited) or not self._round.counts(sample.exit.round):
            return ()
        if sample.exit.rank in self._dead:
            return ()  # told again after a reconnect
        if sample.exit.exit_code == 0:
            self._ended_well = True
            return ()
        subject = Subject(self._job, node=sample.node, member=sample.member, rank=sample.exit.rank)
        death = _Death(sample.exit, subject, at=now - max(0.0, sample.exit.age_s))
        self._dead[sample.exit.rank] = subject, None if death.names_a_peer else sample.exit.signal
        self._ways[sample.exit.rank] = death.way
        if self._ended_well and death.names_a_peer:
            return ()  # it missed the one that ended, and `EarlyExitDetector` says so
        if self._is_news(death):
            first = self._culprit is None
            self._culprit = death
            if first and death.may_be_shared:
                self._held_until = now + self._shared_within_s(death, now)
        elif self._held_until is None:
            return ()
        waits = self._held_until is not None and len(self._dead) < self._round.world_size and self._all_alike()
        return () if waits else self._told()

    def elapse(self, now: float) -> Sequence[Finding]:
        """A failure that the others did not share in time."""
        return self._told() if self._held_until is not None and now >= self._held_until else ()

    def next_wakeup(self) -> float | None:
        return self._held_until

    def _others_live(self) -> Sequence[Finding]:
        """A rank whose collective failed does not fail as the first one did."""
        trained = self._held_until is not None and self._culprit is not None and self._culprit.exit.began
        return self._told() if trained else ()

    def _shared_within_s(self, death: _Death, now: float) -> float:
        """For how long the others are waited for."""
        return ALIKE_TRAINED_S if death.exit.began else max(ALIKE_S_MIN, ALIKE_SHARE * (now - self._began_at))

    def _follow(self, sample: RoundStarted | RoundStopped, now: float) -> Sequence[Finding]:
        """A round that is over for another reason leaves what was held back as late evidence."""
        number = self._round.number
        if not self._round.follow(sample):
            return ()
        late = self._told() if self._held_until is not None and number is not None else ()
        self._culprit = None
        self._dead.clear()
        self._ways.clear()
        self._ended_well = False
        self._began_at = now
        return late

    def _all_alike(self) -> bool:
        """Whether those that died so far did so in one way."""
        return len(set(self._ways.values())) == 1 and "" not in self._ways.values()

    def _told(self) -> Sequence[Finding]:
        """The finding about the culprit, as far as it is known now."""
        assert self._culprit is not None
        self._held_until = None
        explained = self._in_the_light_of_killings(self._culprit)
        company = self._company(self._culprit)
        self._unexplained = (self._culprit, company) if explained.killing is None else None
        return (_finding(explained, company),)

    def _company(self, culprit: _Death) -> _Company:
        """Who died with it, as far as it is known now."""
        if self._round.world_size > 0 and len(self._dead) == self._round.world_size and self._all_alike():
            return _Company(culprit.way, len(self._round.shares) > 1)
        number, rank = culprit.exit.signal, culprit.exit.rank
        also = [who for who, by in self._dead.values() if number is not None and by == number and who.rank != rank]
        return _Company(also=tuple(also[:ALSO_MAX]))

    def _explained(self, report: NodeReport, now: float) -> Sequence[Finding]:
        """The culprit's finding again, when a report says that the kernel killed it."""
        for event in report.events:
            if isinstance(event, ProcessKilledForMemory):
                self._remember(report.node, _Killing(event, now - max(0.0, event.age_s)))
        if self._unexplained is None or self._unexplained[0].subject.node != report.node:
            return ()
        death, company = self._unexplained
        explained = self._in_the_light_of_killings(death)
        if explained.killing is None:
            return ()
        self._unexplained = None
        return (_finding(explained, company),)

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
    lines = (exit.raised or exit.error.strip()).splitlines()
    says = lines[-1].strip()[:CAUSE_CHARACTERS_MAX] if lines else ""
    return f"exit code {exit.exit_code}: {says}" if says else f"exit code {exit.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""  # a real-time signal has no name


def _finding(death: _Death, company: _Company) -> Finding:
    cause, alike = cause_of(death.exit), company.alike
    evidence = [
        Evidence(f"launcher {death.subject.member}", f"rank {death.exit.rank} ended with {cause}", death.at)
    ]
    if (killing := death.killing) is not None:
        cause = OUT_OF_MEMORY
        says = f"process {killing.event.pid} ({killing.event.name}) was killed by the kernel for memory"
        evidence.append(Evidence(f"kernel of node {death.subject.node}", says, killing.at))
    if death.exit.own_limit:
        cause = OWN_LIMIT
        says = "the kernel killed it when its pod had reached the memory limit of its own: no node is to blame"
        evidence.append(Evidence(f"control group of pod {death.subject.member}", says, death.at))
    if death.confidence is Confidence.UNKNOWN and death.exit.error:
        evidence.append(
            Evidence("worker error", "it names a peer's failure: the worker may be a victim", death.at)
        )
    if alike:
        says = f"every rank failed so: {alike}"
        evidence.append(Evidence("process exits", says, death.at))
    subject = death.subject
    if death.is_user_code:
        cause = f"{death.exit.raised[:CAUSE_CHARACTERS_MAX]}{f' ({death.exit.place})' if death.exit.place else ''}"
        says = "the script raised it, and it names no device, network or storage: no node is to blame"
        evidence.append(Evidence("worker error", says, death.at))
    elif death.chose_its_code:
        says = "the script ended with this code, and names no device, network or storage: no node is to blame"
        evidence.append(Evidence("worker error", says, death.at))
    kind = FindingKind.USER_CODE if death.is_user_code or death.chose_its_code else FindingKind.PROCESS_EXIT
    if death.is_of_the_checkpoints:
        kind, cause = FindingKind.NOTHING_TO_RESTORE, NOTHING_TO_RESTORE.sub("", death.exit.raised, 1)
        cause = cause[:CAUSE_CHARACTERS_MAX]
    if kind is not FindingKind.PROCESS_EXIT or (company.spread and not death.tells_of_device):
        subject = Subject(death.subject.job, rank=death.subject.rank)
    return Finding(
        kind=kind,
        subject=subject,
        cause=cause,
        evidence=tuple(evidence),
        confidence=death.confidence,
        began_at=death.at,
        round=death.exit.round,
        error=death.exit.error,
        also=company.also,
        # What lies outside the script may mend itself once training has shown that it can work.
        alike=alike if kind is not FindingKind.PROCESS_EXIT or not death.exit.began else "",
        innocent=death.exit.own_limit,
    )
