"""A worker process ended before its training was over.

The first death of a round is reported the moment it is heard of, because healing starts with it. In synchronous
training one death brings others: deaths of the same round shortly after are symptoms and make no finding.
What is heard first is nearly always what happened first; when a later message tells of a better culprit (one
that died earlier, or the first one to be no victim itself), the finding is made again, naming that one.

A Python exception that nothing outside the script explains is the script's own (`user_code`), and names no node;
so is an exit code, which the script chose as it does when it ends with success. A script that was asked to end by
a signal did as it was told, and nobody is to blame.

One exception is neither a node's nor the script's: that checkpoints are there and none can be restored. All ranks
raise it alike, so the first is told at once.

A failure that others may share waits for them: when every rank fails in one way, the fault is in what they share.
Before any sign of training waiting for a few seconds costs nothing. After it the wait is short, and over as soon
as one of the others is seen to miss its peer; what blames no node anyhow does not wait.

A mistake that the script's start shows at once, and that every rank makes, says what mends it. Ranks of one node
that cannot load what those of others load are that node's fault, not the script's: `mistakes` tells them apart.

A worker that the kernel killed for want of memory ends with signal 9, like one that somebody killed. The agent
tells the difference, as a rule a moment after the launcher told of the death: then the finding is made again.
"""

import signal
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.membership import WorkerExited
from holdfast.api.policy import Policy
from holdfast.api.telemetry import NodeReport, ProcessKilledForMemory
from holdfast.watchdog.detectors.detector import (
    ROUNDS,
    CollectiveBroke,
    Detector,
    Exited,
    Reported,
    RoundInForce,
    RoundStarted,
    RoundStopped,
    Sample,
)
from holdfast.watchdog.detectors.mistakes import loads, mistake_of
from holdfast.watchdog.detectors.user_code import ALIKE, DEVICE, NOTHING_TO_RESTORE, PEER, outside_of

# Survivors of a death fail in their next collective: within 7-27 ms with gloo on one machine, plus the time an
# interpreter takes to end. Later than this, nothing has healed the round and the death is news again.
SYMPTOM_WINDOW_S = 5.0
CAUSE_CHARACTERS_MAX = 200
OUT_OF_MEMORY = "out of memory"
OWN_LIMIT = "out of memory: the pod's own limit"
LOADS_NOT = "cannot load what other nodes load"
# Killing and death are told by two programs on one node, each with its age.
KILLING_WINDOW_S = 5.0
NODES_REMEMBERED = 1024
KILLINGS_REMEMBERED = 16

# For how long a failure before any sign of training waits for the other ranks. They read the same files, some
# later than others: beyond the least, a quarter of what the first one took.
ALIKE_S_MIN = 2.0
ALIKE_SHARE = 0.25
# Of what is loaded from disks, which are not equally fast on all nodes, as much again as the first one took: the
# node is named if it stays alone.
ALIKE_LOADING_SHARE = 1.0
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
    """One exit, placed in time by the watchdog's clock, and what it says of itself.

    `raised_it`: the script raised an exception that nothing outside it explains; `chose_its_code`: it ended with a
    code of its own, and nothing outside it explains why. `way` is what failures alike have in common: not the
    message, which may name the rank. Empty: it says nothing of other ranks. `may_be_shared`: it matters if the
    other ranks fail in the same way.
    """

    exit: WorkerExited
    subject: Subject
    at: float
    kind: FindingKind
    confidence: Confidence
    raised_it: bool
    chose_its_code: bool
    names_a_peer: bool
    tells_of_device: bool
    way: str
    may_be_shared: bool


def _death(sample: Exited, job: str, now: float) -> _Death:
    exit = sample.exit
    outside = outside_of(exit.raised, exit.error)
    names_a_peer = PEER.told_by.search(exit.error) is not None
    unrestorable = NOTHING_TO_RESTORE.match(exit.raised) is not None
    of_the_script = exit.exit_code is not None and outside is None and exit.asked_by is None
    raised_it = of_the_script and bool(exit.raised)
    chose_its_code = of_the_script and exit.exit_code not in _SIGNALS_AS_CODES
    kind = FindingKind.USER_CODE if raised_it or chose_its_code else FindingKind.PROCESS_EXIT
    if names_a_peer and exit.signal in (None, signal.SIGABRT):
        # NCCL's own watchdog thread aborts a process whose peer is gone, so not even a signal clears a victim.
        confidence = Confidence.UNKNOWN
    elif exit.signal is not None or exit.asked_by is not None or raised_it or unrestorable:
        confidence = Confidence.CERTAIN
    else:
        confidence = Confidence.UNKNOWN if exit.exit_code is None else Confidence.PROBABLE
    known = exit.exit_code is not None or exit.signal is not None
    sent = exit.asked_by is not None or (exit.began and exit.signal in _SENT_BY_OTHERS)
    if not known or names_a_peer or unrestorable or sent or exit.exit_code == 0:
        way = ""
    else:
        way = (exit.raised or cause_of(exit)).partition(":")[0]
        way += f" in {exit.place}" if exit.raised and exit.place else ""
    # A crash in training concerns its node.
    settled = raised_it or exit.signal is not None or outside is DEVICE
    return _Death(
        exit,
        Subject(job, node=sample.node, member=sample.member, rank=exit.rank),
        now - max(0.0, exit.age_s),
        FindingKind.NOTHING_TO_RESTORE if unrestorable else kind,
        confidence,
        raised_it,
        chose_its_code,
        names_a_peer,
        tells_of_device=outside is DEVICE,
        way=way,
        may_be_shared=bool(way) and not (exit.began and settled),
    )


@dataclass(frozen=True, slots=True)
class _Company:
    """Who died with the culprit: every rank in one way (`alike`, `spread` over nodes), or some by one signal.

    `node_alone`: all ranks of its node failed to load something, and those of other nodes did not.
    """

    alike: str = ""
    spread: bool = False
    also: tuple[Subject, ...] = ()
    node_alone: bool = False


class ProcessExitDetector(Detector):
    """Judges `Exited`, in the light of what `Reported` says. Silence proves nothing here."""

    subscribes_to: tuple[type[Sample], ...] = (Exited, CollectiveBroke, Reported, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._round = RoundInForce(policy.job)
        self._culprit: _Death | None = None
        # By rank: who, by which signal, if that is its own, and in which way.
        self._dead: dict[int, tuple[Subject, int | None, str]] = {}
        self._ended_well = False  # a rank of the round did, so that others may miss it
        self._began_at = 0.0
        self._held_until: float | None = None  # the culprit is not told yet
        # Outlives its round: the next one is shown at once, often before the agent tells of the killing.
        self._unexplained: tuple[_Death, _Company] | None = None
        # By node: what the kernel killed for want of memory, and when.
        self._killings: OrderedDict[str, deque[tuple[ProcessKilledForMemory, float]]] = OrderedDict()

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """A finding for the first death of a round, for a better culprit of it, and for a better cause."""
        match sample:
            case Reported(report=report) if report.events:
                return self._explained(report, now)
            case RoundStarted() | RoundStopped():
                return self._follow(sample, now)
            case CollectiveBroke(failure=failure) if failure.round == self._round.number:
                # A rank whose collective failed does not fail as the first one did.
                trained = self._held_until is not None and self._culprit is not None and self._culprit.exit.began
                return self._told() if trained else ()
            case Exited(member=member, exit=exit):
                running = self._round.round
                rank = running.rank_now(exit.round, exit.rank, member) if running is not None else None
                if running is None or rank is None or rank in self._dead:
                    return ()
                if not exit.is_end:
                    known = replace(exit, round=running.number, rank=rank)
                    return self._judge(_death(replace(sample, exit=known), self._job, now), now)
                self._ended_well = True
        return ()

    def elapse(self, now: float) -> Sequence[Finding]:
        """A failure that the others did not share in time."""
        return self._told() if self._held_until is not None and now >= self._held_until else ()

    def next_wakeup(self) -> float | None:
        return self._held_until

    def _judge(self, death: _Death, now: float) -> Sequence[Finding]:
        member = death.subject.member
        is_of_others = all(self._round.apart(member, who.member) for who, _, _ in self._dead.values())
        self._dead[death.exit.rank] = death.subject, None if death.names_a_peer else death.exit.signal, death.way
        if self._ended_well and death.names_a_peer:
            return ()  # it missed the one that ended, and `EarlyExitDetector` says so
        known, is_sure = self._culprit, death.confidence is not Confidence.UNKNOWN
        # What one replica group loses brings no death about in another.
        is_news = known is None or is_of_others or death.at > known.at + SYMPTOM_WINDOW_S
        # More likely it brought the known one about than the other way round.
        is_better = known is not None and (known.confidence is Confidence.UNKNOWN or death.at < known.at)
        if is_news or (is_sure and is_better):
            self._culprit = death
            if known is None and death.may_be_shared:
                share = ALIKE_LOADING_SHARE if loads(death.exit) else ALIKE_SHARE
                wait_s = max(ALIKE_S_MIN, share * (now - self._began_at))
                self._held_until = now + (ALIKE_TRAINED_S if death.exit.began else wait_s)
        elif self._held_until is None:
            return ()
        waits = self._held_until is not None and len(self._dead) < self._round.world_size and self._all_alike()
        return () if waits else self._told()

    def _follow(self, sample: RoundStarted | RoundStopped, now: float) -> Sequence[Finding]:
        """A round that is over for another reason leaves what was held back as late evidence."""
        before = self._round.round
        if not self._round.follow(sample):
            return ()
        late = self._told() if self._held_until is not None and before is not None else ()
        self._culprit = None
        self._dead.clear()
        self._ended_well = False
        self._began_at = now
        return late

    def _all_alike(self) -> bool:
        """Whether those that died so far did so in one way."""
        ways = {way for _, _, way in self._dead.values()}
        return len(ways) == 1 and "" not in ways

    def _told(self) -> Sequence[Finding]:
        """The finding about the culprit and who died with it, as far as it is known now."""
        culprit, self._held_until = self._culprit, None
        assert culprit is not None
        if (running := self._round.round) and len(self._dead) == running.world_size and self._all_alike():
            company = _Company(culprit.way, len(running.ranks) > 1)
        else:
            number, rank = culprit.exit.signal, culprit.exit.rank
            others = [] if number is None else self._dead.values()
            also = [who for who, by, _ in others if by == number and who.rank != rank]
            alone = loads(culprit.exit) and self._on_its_node_alone(culprit)
            company = _Company(also=tuple(also[:ALSO_MAX]), node_alone=alone)
        killing = self._killing_of(culprit)
        self._unexplained = (culprit, company) if killing is None else None
        return (_finding(culprit, company, killing),)

    def _on_its_node_alone(self, culprit: _Death) -> bool:
        """Whether every rank of the culprit's node failed as it did, and no rank of another node."""
        shares = self._round.round.ranks if self._round.round else ()
        failed = {rank for rank, (_, _, way) in self._dead.items() if way == culprit.way}
        its = {
            rank
            for share in shares
            if share.node == culprit.subject.node
            for rank in range(share.first_rank, share.first_rank + share.local_size)
        }
        return failed == its and any(share.node != culprit.subject.node for share in shares)

    def _explained(self, report: NodeReport, now: float) -> Sequence[Finding]:
        """The culprit's finding again, when a report says that the kernel killed it."""
        for event in report.events:
            if isinstance(event, ProcessKilledForMemory):
                killings = self._killings.setdefault(report.node, deque(maxlen=KILLINGS_REMEMBERED))
                killings.append((event, now - max(0.0, event.age_s)))
                self._killings.move_to_end(report.node)
                if len(self._killings) > NODES_REMEMBERED:
                    self._killings.popitem(last=False)
        if self._unexplained is None or self._unexplained[0].subject.node != report.node:
            return ()
        death, company = self._unexplained
        if (killing := self._killing_of(death)) is None:
            return ()
        self._unexplained = None
        return (_finding(death, company, killing),)

    def _killing_of(self, death: _Death) -> tuple[ProcessKilledForMemory, float] | None:
        """The kernel's word that explains the death."""
        if death.exit.signal != signal.SIGKILL:
            return None
        killings = self._killings.get(death.subject.node or "", ())
        return next((each for each in killings if abs(death.at - each[1]) <= KILLING_WINDOW_S), None)


def cause_of(exit: WorkerExited) -> str:
    """What deaths of the same class have in common: "signal 9 (SIGKILL)", "exit code 1: <last line of error>"."""
    if exit.signal is not None:
        return _signal_name(exit.signal)
    if exit.exit_code is None:
        return "exit status Unknown"
    if exit.asked_by is not None:
        return f"exit code {exit.exit_code} after {_signal_name(exit.asked_by)}"
    if exit.exit_code == 0:
        return "exit code 0 before Run.enter had returned"
    lines = (exit.raised or exit.error.strip()).splitlines()
    says = lines[-1].strip()[:CAUSE_CHARACTERS_MAX] if lines else ""
    return f"exit code {exit.exit_code}: {says}" if says else f"exit code {exit.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"  # a real-time signal has no name


def _finding(death: _Death, company: _Company, killing: tuple[ProcessKilledForMemory, float] | None) -> Finding:
    exit, subject, alike = death.exit, death.subject, company.alike
    if company.node_alone:
        return _of_its_node(death)
    cause, mistake = cause_of(exit), mistake_of(exit) if alike else None
    evidence = [Evidence(f"launcher {subject.member}", f"rank {exit.rank} ended with {cause}", death.at)]
    if killing is not None:
        event, killed_at = killing
        cause, says = OUT_OF_MEMORY, f"process {event.pid} ({event.name}) was killed by the kernel for memory"
        evidence.append(Evidence(f"kernel of node {subject.node}", says, killed_at))
    by_kernel = killing is not None and killing[0].own_limit
    if exit.own_limit or by_kernel:
        cause = OWN_LIMIT
        says = "the kernel killed it when its pod had reached the memory limit of its own: no node is to blame"
        source = f"kernel of node {subject.node}" if by_kernel else f"control group of pod {subject.member}"
        evidence.append(Evidence(source, says, death.at))
    if death.confidence is Confidence.UNKNOWN and exit.error:
        says = "it names a peer's failure: the worker may be a victim"
        evidence.append(Evidence("worker error", says, death.at))
    if alike:
        evidence.append(Evidence("process exits", f"every rank failed so: {alike}", death.at))
    if exit.asked_by is not None:
        says = f"{_signal_name(exit.asked_by)} had reached it: neither the script nor its node is to blame"
        evidence.append(Evidence(f"launcher {subject.member}", says, death.at))
    if death.raised_it or death.chose_its_code:
        did = "raised it, and it" if death.raised_it else "ended with this code, and"
        says = f"the script {did} names no device, network or storage: no node is to blame"
        evidence.append(Evidence("worker error", says, death.at))
    if death.raised_it:
        cause = f"{exit.raised[:CAUSE_CHARACTERS_MAX]}{f' ({exit.place})' if exit.place else ''}"
    if exit.exit_code == 0 and exit.asked_by is None:
        alike = ALIKE  # the script alone decides that it leaves, whatever the others do
    if death.kind is FindingKind.NOTHING_TO_RESTORE:
        cause = NOTHING_TO_RESTORE.sub("", exit.raised, 1)[:CAUSE_CHARACTERS_MAX]
    if death.kind is not FindingKind.PROCESS_EXIT or (company.spread and not death.tells_of_device):
        subject = Subject(subject.job, rank=subject.rank)
    return Finding(
        kind=death.kind,
        subject=subject,
        cause=cause,
        evidence=tuple(evidence),
        confidence=death.confidence,
        began_at=death.at,
        round=exit.round,
        error=exit.error,
        also=company.also,
        # What lies outside the script may mend itself once training has shown that it can work.
        alike=alike if death.kind is not FindingKind.PROCESS_EXIT or not exit.began else "",
        trace=exit.trace if death.raised_it else "",
        began=exit.began,
        fix=mistake.fix if mistake is not None and death.kind is FindingKind.USER_CODE else "",
        innocent=exit.own_limit or by_kernel or (exit.asked_by is not None and exit.signal is None),
    )


def _of_its_node(death: _Death) -> Finding:
    """The finding that a node cannot load what others load: a disk, a mount or an image that is not as theirs."""
    exit, subject = death.exit, death.subject
    raised = f"{exit.raised[:CAUSE_CHARACTERS_MAX]}{f' ({exit.place})' if exit.place else ''}"
    source = f"launcher {subject.member}"
    evidence = (
        Evidence(source, f"rank {exit.rank} ended with {cause_of(exit)}", death.at),
        Evidence(source, f"every rank of its node failed so before any step: {raised}", death.at),
        Evidence("process exits", "no rank of another node did, with the same script and arguments", death.at),
    )
    return Finding(
        kind=FindingKind.PROCESS_EXIT,
        subject=subject,
        cause=LOADS_NOT,
        evidence=evidence,
        confidence=Confidence.PROBABLE,
        began_at=death.at,
        round=exit.round,
        error=exit.error,
    )
