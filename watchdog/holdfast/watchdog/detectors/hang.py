"""A round that stands still, judged by the job's own step times and by where each rank is.

In synchronous training one stuck rank stops all, so a hang shows twice: on the rank that does not arrive and on
all that wait for it. Two judgements follow.

*A rank is provably stuck*: its process is stopped, or its side thread has lost its pulse while others beat. That
rank is named at once, with certainty, whatever the others do, unless it works with the interpreter held.

*The whole round stands still*: every rank has outlived the time its phase allows. Then `name_the_missing` tells
who is missing. A process that runs may merely be late (saving or evaluating without saying so), so it is given
`LATE_S_MIN`, and when nobody stands out `UNDECIDED_S_MIN`.

A replica group that goes on takes up a newer round between two of its steps, and until it does all others wait for
it there. Its ranks have the time of the step that they are in, by their record of the round before.

Deadlines, from the newest publication of the rank:

    stopped process        max(1 s, 4 x p99 of the step times)
    live, in the step      max(5 s, 4 x p99); nobody stands out: max(30 s, 4 x p99)
    before the first step  the policy's startup time-out (compiling, loading)
    saving a checkpoint    max(60 s, 5 x the longest seen)
    idle on purpose        none, as long as the pulse beats
    works, in the step     max(live, in the step; 30 s, or twice what such work took before; 60 s at most)
    works, idle on purpose none, whether or not the pulse beats

*A process that the kernel shows working*, in the last seconds, does rare work of the script, as a rule: an export,
a long evaluation.
Whoever waits, in a collective or spinning behind it, is not missing and so is not named; where a working rank is
missing, all have its time. Beyond it the script hangs, which is said of the script and of no node; but where
another one is missing that has come no further and sleeps, that one is named. A stop where
the process does not work is judged as before. But where the rank stood there before, after the same step or twice
at one line of the script, it has 60 s as well; where such a stop of the rank ended by itself, twice what it took.
What came before is learned (`holdfast.api.longwork`); a number in the policy is taken as it is.

The agent reports a stall within 0.1 s of the first deadline, and healing takes a few tenths of a second: a stopped
worker is named and healed within max(2 s, 5 x p99). `hang_timeout_s` of the policy replaces the first two, and a
longer one holds where a rank saves or is idle too.

Only fresh reports count. A node whose agent is silent, or a record that cannot be read, is Unknown: a round with
such a rank is not called hung on its account, and silence alone never proves a hang.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from holdfast.api.event import StopEnded
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.longwork import LongWork
from holdfast.api.policy import Policy
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import ProcessState, RankSample
from holdfast.watchdog.detectors.detector import (
    ROUNDS,
    Detector,
    Exited,
    Reported,
    RoundInForce,
    Sample,
    WorkKnown,
)
from holdfast.watchdog.detectors.user_code import early_exit
from holdfast.watchdog.wording import ranks_in_words

STEPS_KEPT = 512
# Before the job has trained so many steps beyond a round's first one, nothing is known of how long they take.
STEPS_NEEDED = 3
QUANTILE = 0.99

STEP_TIMES_ALLOWED = 4.0
STOPPED_S_MIN = 1.0
LATE_S_MIN = 5.0
UNDECIDED_S_MIN = 30.0
# A save to a shared file system under load; the library's own saves stall the step for far less.
CHECKPOINT_S_MIN = 60.0
CHECKPOINTS_ALLOWED = 5.0
# A standstill that cannot be called yet is looked at again after this: looking costs time in every rank.
LOOK_AGAIN_S = 0.2
# When nobody stands out all ranks are meant; beyond this many they are counted, not listed.
RANKS_LISTED = 64
NOT_ENTERED = "never entered the round"
WORKS_ON = "the script works on without a step"
# Of the time without a step, the share that a process which works has of a processor, on a loaded machine too:
# with a dozen others on each, 7 % were measured. One that waits has a hundredth at most, for its pulse.
WORKING_SHARE = 0.03
# The work of so many last seconds counts: what a process did before it fell asleep says nothing of how it stands.
WORK_LOOKED_AT_S = LATE_S_MIN
# Of samples closer than this one is kept: the kernel counts such time in hundredths of a second.
WORK_MARKS_APART_S = 1.0
# Two samples tell of the same publication when their times differ by less than the jitter of delivery.
SAME_PUBLICATION_S = 0.1

# Where a rank still has to do its own work before it can meet the others, in order. A rank in the backward pass
# or later may be waiting for them.
_BEFORE_THE_MEETING = (
    Phase.STARTUP,
    Phase.IDLE,
    Phase.CHECKPOINT,
    Phase.OWN,
    Phase.DATA,
    Phase.FORWARD,
)
# What the kernel does not run is no work of the script: it is stopped, or waits for a device or a disk.
_NOT_RUN = {ProcessState.STOPPED, ProcessState.BLOCKED}
_IN_THE_STEP = (Phase.OWN, Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_PLACES = {phase: place for place, phase in enumerate((*_BEFORE_THE_MEETING, Phase.BACKWARD, Phase.OPTIMIZER))}
GROUPS_SHOWN = 8
CULPRITS_SHOWN = 8


# Who did not arrive: reads one round's ranks at a standstill and names those the others wait for.


class Seen(msgspec.Struct, frozen=True, gc=False):
    """One rank's newest sample. `at` is its arrival, `progress_at` when the rank last moved, `stopped_at` since
    when its process has been seen stopped, None when it is not (watchdog clock). `marks` are how much its process
    had worked at earlier times of this stop, (time, seconds), oldest first: from the first of them on its work is
    looked at.
    """

    sample: RankSample
    at: float
    progress_at: float
    stopped_at: float | None = None
    marks: tuple[tuple[float, float], ...] = ()

    @property
    def stalled_s(self) -> float:
        """How long the rank is proven not to have moved."""
        return self.at - self.progress_at

    @property
    def works(self) -> bool:
        """Whether the kernel shows its process working lately, since it last published."""
        sample = self.sample
        if sample.process is not ProcessState.RUNNING or sample.worked_s is None:
            return False
        since, before_s = self.marks[0] if self.marks else (self.at - sample.progress_age_s, 0.0)
        return sample.worked_s - before_s >= WORKING_SHARE * (self.at - since)


def marks_of(sample: RankSample, before: Seen | None, now: float) -> tuple[tuple[float, float], ...]:
    """The marks of a new sample: one at the publication, then those of the samples that followed it."""
    published = (now - sample.progress_age_s, 0.0)
    if before is None or not _is_same_publication(sample, before, now):
        return (published,)
    marks, worked_s = before.marks or (published,), before.sample.worked_s
    if sample.worked_s is not None and worked_s is not None and sample.worked_s < worked_s:
        return ((before.at, 0.0),)  # the agent began to count anew
    # Of a look that told nothing there is no mark.
    if worked_s is not None and before.at >= marks[-1][0] + WORK_MARKS_APART_S:
        marks = (*marks, (before.at, worked_s))
    first = max((at for at, (when, _) in enumerate(marks) if when <= now - WORK_LOOKED_AT_S), default=0)
    return marks[first:]


@dataclass(frozen=True, slots=True)
class Named:
    """The ranks that did not arrive, none when nobody stands out, and by which rule; `works`: they work on.
    `beside` did not arrive either, and are not what it is about.
    """

    ranks: tuple[int, ...]
    confidence: Confidence
    cause: str
    works: bool = False
    beside: tuple[int, ...] = ()


def name_the_missing(seen: Mapping[int, Seen], absent: Sequence[int], groups: Sequence[range] = ()) -> Named:
    """The first rule that tells one side from the other.

    `absent` are ranks that never published anything in this round, on nodes whose agents do report. `groups` are
    the ranks of each replica group: it counts collectives of its own, since it was formed.
    """
    if absent:
        return Named(tuple(absent), Confidence.PROBABLE, NOT_ENTERED)
    gone = tuple(rank for rank, each in seen.items() if each.sample.process is ProcessState.GONE)
    if gone:
        return Named(gone, Confidence.CERTAIN, "the process is gone")
    behind = _lowest({rank: -1 if each.sample.step is None else each.sample.step for rank, each in seen.items()})
    sequences = {rank: each.sample.collective_sequence for rank, each in seen.items()}
    known = {rank: sequence for rank, sequence in sequences.items() if sequence is not None}
    if not behind and len(known) == len(seen):
        groups = groups or (range(max(known) + 1),)
        of_each = [{rank: known[rank] for rank in group if rank in known} for group in groups]
        behind = tuple([rank for ranks in of_each if ranks for rank in _lowest(ranks)])
    if behind:
        return Named(behind, Confidence.PROBABLE, "did not reach the collective")
    early = _lowest({rank: _PLACES[each.sample.phase] for rank, each in seen.items()})
    if early and seen[early[0]].sample.phase in _BEFORE_THE_MEETING:
        phase = seen[early[0]].sample.phase
        return Named(early, Confidence.PROBABLE, f"stuck in {phase.name.lower()}")
    return Named((), Confidence.UNKNOWN, "every rank waits")


def name_the_behind(behind: Mapping[int, Seen], groups: Sequence[range]) -> Named:
    """Of ranks that have not taken up the round when others have: those that the rest of them wait for. One that
    hangs keeps all of its replica group in the round before.
    """
    if len(behind) == 1:
        return Named(tuple(behind), Confidence.PROBABLE, NOT_ENTERED)
    named = name_the_missing(behind, (), groups)
    return named if named.ranks else Named(tuple(behind), Confidence.UNKNOWN, NOT_ENTERED)


def _lowest(places: Mapping[int, int]) -> tuple[int, ...]:
    """The ranks at the lowest place; none when all are level."""
    lowest = min(places.values())
    ranks = tuple(rank for rank, place in places.items() if place == lowest)
    return () if len(ranks) == len(places) else ranks


def evidence_of(seen: Mapping[int, Seen], missing: Sequence[int], now: float) -> tuple[Evidence, ...]:
    """Both sides: who did not arrive, and who waits where. Ranks in the same state share a line."""
    lines = []
    for rank in missing[:CULPRITS_SHOWN]:
        if (away := seen.get(rank)) is None:
            says = f"rank {rank} did not arrive: it never published in this round"
            lines.append(Evidence("rank records", says, now))
            continue
        sample = away.sample
        pulse = "unknown" if sample.pulse_age_s is None else f"{sample.pulse_age_s:.1f} s ago"
        worked = "" if sample.worked_s is None else f", {sample.worked_s:.1f} s of processors used meanwhile"
        says = (
            f"rank {rank} did not arrive: process {sample.process.value}, {_where(sample)}, "
            f"no progress for {away.stalled_s:.1f} s, last pulse {pulse}{worked}"
        )
        lines.append(Evidence("rank records", says, away.at))
    named = set(missing)
    groups: dict[tuple[int | None, int | None, Phase], list[int]] = {}
    for rank, each in seen.items():
        if rank not in named:
            key = (each.sample.step, each.sample.collective_sequence, each.sample.phase)
            groups.setdefault(key, []).append(rank)
    largest_first = sorted(groups.items(), key=lambda group: -len(group[1]))
    for _, ranks in largest_first[:GROUPS_SHOWN]:
        one = seen[ranks[0]]
        longest = max(seen[rank].stalled_s for rank in ranks)
        says = f"{ranks_in_words(ranks)} {_where(one.sample)}, waiting for {longest:.1f} s"
        lines.append(Evidence("rank records", says, one.at))
    return tuple(lines)


def _where(sample: RankSample) -> str:
    step = "before its first step" if sample.step is None else f"after step {sample.step}"
    collective = "" if sample.collective_sequence is None else f", collective {sample.collective_sequence}"
    return f"in {sample.phase.name.lower()} {step}{collective}"


class HangDetector(Detector):
    """Judges `Reported`. At most one finding per round; one sample per rank and a window of step times is kept."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, Exited, WorkKnown, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._work = LongWork()
        self._round = RoundInForce(policy.job)
        self._times = StepTimes()
        self._longest_checkpoint_s = 0.0
        # Ranks that save, or are idle and do not work, may hold the interpreter for so long.
        self._resting_s = max(CHECKPOINT_S_MIN, policy.hang_timeout_s or 0.0)
        # Within every deadline there is, so that such a rank needs no closer look.
        self._moving_s = min(STOPPED_S_MIN, policy.hang_timeout_s or math.inf, policy.startup_timeout_s)
        self._begin(0.0)

    def observe(self, sample: Sample, now: float) -> Sequence[Finding | StopEnded]:
        """Take in a report; a finding when it proves a hang, or that a long stop ended by itself."""
        if isinstance(sample, WorkKnown):
            self._work = sample.work
        if self._round.follow(sample):
            self._begin(now)
        if isinstance(sample, Exited) and sample.exit.is_end and sample.exit.round == self._round.number:
            self._ended.add(sample.exit.rank)
        if not isinstance(sample, Reported) or self._round.number is None or self._found:
            return ()
        suspects = self._take(sample, now)
        if self._late and (ended := self._stops_ended()):
            return ended
        if not any(self._is_stuck(rank, self._seen[rank]) for rank in suspects):
            return self._judge_behind(now) if self._behind else self._judge_standstill(now)
        stuck = {rank: each for rank, each in self._seen.items() if self._is_stuck(rank, each)}
        idle = tuple(rank for rank, each in stuck.items() if not each.works)
        if not idle:
            return (self._finding(Named(tuple(stuck), Confidence.PROBABLE, WORKS_ON, works=True), now),)
        stopped = self._seen[idle[0]].sample.process is ProcessState.STOPPED
        cause = "the process is stopped" if stopped else "the process lost its pulse"
        return (self._finding(Named(idle, Confidence.CERTAIN, cause), now),)

    def stalled_after_s(self, now: float) -> float:
        """After how long without progress a rank is worth reporting at once: the first of the deadlines."""
        return self._deadline_s(STOPPED_S_MIN) or STOPPED_S_MIN

    def _begin(self, now: float) -> None:
        self._began_at = now
        self._seen: dict[int, Seen] = {}
        self._stalled: set[int] = set()
        self._late: dict[int, Seen] = {}  # those that all others wait for, for longer than a step may take
        self._behind: set[int] = set()  # those seen that have not taken up the round their group goes on in
        self._ended: set[int] = set()  # ranks that ended with success
        self._node_at: dict[str, float] = {}
        self._look_at = -math.inf
        self._found = False
        self._times.begin_round()

    def _take(self, reported: Reported, now: float) -> list[int]:
        """Keep the samples that count; return the ranks that may be stuck. What a report costs is decided here."""
        report = reported.report
        if not report.unreadable or not any(each.source.startswith("rank") for each in report.unreadable):
            self._node_at[report.node] = now
        # Not after any deadline that `_allowed_s` gives: below it nobody needs a closer look.
        soonest_s = min(self._deadline_s(LATE_S_MIN) or math.inf, self._policy.startup_timeout_s, CHECKPOINT_S_MIN)
        suspects, known, moving_s = [], self._seen, self._moving_s
        samples = self._round.samples_in(reported)
        if self._behind:
            self._behind.difference_update([sample.rank for sample in samples])
        for sample in samples:
            rank, stopped = sample.rank, sample.process is ProcessState.STOPPED
            before = known.get(rank)
            if sample.step is not None and sample.step_time_s is not None:
                self._times.take(sample.step, sample.step_time_s)
            if before is not None and before.sample.phase is Phase.CHECKPOINT:
                saved_s = before.sample.phase_age_s
                # Only a save that ended counts: one that hangs must not extend its own deadline.
                if sample.phase is not Phase.CHECKPOINT or sample.phase_age_s < saved_s:
                    self._longest_checkpoint_s = max(self._longest_checkpoint_s, saved_s)
            stopped_at = None
            if stopped:  # since when it has been seen so, without a sample in between that shows it running
                stopped_at = now if before is None or before.stopped_at is None else before.stopped_at
            if sample.progress_age_s < moving_s:
                known[rank] = Seen(sample, now, now - sample.progress_age_s, stopped_at)
                self._stalled.discard(rank)
                continue
            marks = marks_of(sample, before, now)
            known[rank] = seen = Seen(sample, now, moved_at(sample, before, now), stopped_at, marks)
            stalled_s = seen.stalled_s
            if stalled_s >= soonest_s and stalled_s >= self._allowed_s(sample):
                self._stalled.add(rank)
            else:
                self._stalled.discard(rank)
            if stopped or (sample.pulse_age_s is not None and sample.pulse_age_s >= soonest_s):
                suspects.append(rank)
        return [*suspects, *self._take_behind(reported, now)]

    def _take_behind(self, reported: Reported, now: float) -> Iterator[int]:
        """The same of ranks that have not taken up the round yet."""
        for sample in self._round.samples_behind(reported):
            rank, stopped = sample.rank, sample.process is ProcessState.STOPPED
            before = self._seen.get(rank)
            stopped_at = before.stopped_at if before is not None and before.stopped_at is not None else now
            marks = marks_of(sample, before, now)
            seen = Seen(sample, now, moved_at(sample, before, now), stopped_at if stopped else None, marks)
            self._seen[rank] = seen
            self._behind.add(rank)
            (self._stalled.add if seen.stalled_s >= self._allowed_s(sample) else self._stalled.discard)(rank)
            if stopped or (sample.pulse_age_s or 0.0) >= LATE_S_MIN:
                yield rank

    def _deadline_s(self, least_s: float) -> float | None:
        """The time a step may take without progress; None before the job has shown how long its steps are."""
        if self._policy.hang_timeout_s is not None:
            return self._policy.hang_timeout_s
        p99_s = self._times.p99_s()
        return None if p99_s is None else max(least_s, STEP_TIMES_ALLOWED * p99_s)

    def _allowed_s(self, sample: RankSample) -> float:
        """How long a rank whose process runs may stay where it is."""
        if sample.phase is Phase.IDLE:
            return math.inf
        if sample.phase is Phase.CHECKPOINT:
            return max(self._resting_s, CHECKPOINTS_ALLOWED * self._longest_checkpoint_s)
        deadline_s = self._deadline_s(LATE_S_MIN)
        if sample.phase is Phase.STARTUP or sample.step is None or deadline_s is None:
            return self._policy.startup_timeout_s
        return deadline_s

    def _patience_s(self, ranks: Sequence[int]) -> float:
        """How long all may stand still while these are missing, where their stop may be the script's own."""
        seen = [(rank, self._seen[rank]) for rank in ranks if rank in self._seen]
        states = {each.sample.process for _, each in seen}
        if self._policy.hang_timeout_s is not None or states & (_NOT_RUN | {ProcessState.GONE}):
            return 0.0
        is_idle = not any(each.works for _, each in seen)
        allowed = (
            self._work.allowed_s(rank, each.sample.step, works=each.works)
            for rank, each in seen
            if each.sample.step is not None and (is_idle or each.works)
        )
        return max(allowed, default=0.0)

    def _undecided_s(self) -> float:
        """The same where nobody stands out."""
        usual_s = self._deadline_s(UNDECIDED_S_MIN) or self._policy.startup_timeout_s
        if self._policy.hang_timeout_s is not None or (step := _step_of(self._seen.values())) is None:
            return usual_s
        return max(usual_s, self._work.allowed_s(None, step, works=False))

    def _stops_ended(self) -> tuple[StopEnded, ...]:
        """Of the ranks that all waited for, those that went on by themselves, where that is news."""
        ended, number = [], self._round.number
        for rank, before in list(self._late.items()):
            seen = self._seen.get(rank)
            if number is None or seen is None or seen.progress_at <= before.progress_at + SAME_PUBLICATION_S:
                continue
            del self._late[rank]
            # As far as it was seen to stand: what a rank did while its agent was silent nobody knows.
            took_s, known = before.stalled_s, self._work
            if seen.sample.pid == before.sample.pid and known.after(rank, took_s, worked=before.works) != known:
                ended.append(StopEnded(number, rank, took_s, before.works))
        return tuple(ended)

    def _is_stuck(self, rank: int, seen: Seen) -> bool:
        """Whether this rank is stuck by its own evidence."""
        sample = seen.sample
        if sample.process is ProcessState.STOPPED:
            limit_s = self._deadline_s(STOPPED_S_MIN) or STOPPED_S_MIN
            # A debugger stops a process for a moment, maybe one that published nothing for long. The pulse tells
            # for how long; where there is none, the samples since it was first seen stopped.
            seen_stopped_s = 0.0 if seen.stopped_at is None else seen.at - seen.stopped_at
            stopped_s = seen_stopped_s if sample.pulse_age_s is None else sample.pulse_age_s
            return sample.progress_age_s >= limit_s and stopped_s >= limit_s / 2
        if sample.pulse_age_s is None or sample.process is ProcessState.GONE or sample.phase is Phase.STARTUP:
            return False
        if sample.phase is Phase.IDLE and seen.works:
            return False  # it said so, and does
        # Idle and saving ranks may hold the interpreter for long; they are given what a save is given.
        resting = sample.phase in (Phase.IDLE, Phase.CHECKPOINT)
        limit_s = self._resting_s if resting else max(self._allowed_s(sample), self._patience_s((rank,)))
        if min(sample.pulse_age_s, sample.progress_age_s) < limit_s:
            return False
        pulses = (other.sample.pulse_age_s for other in self._seen.values())
        return any(pulse_age_s is not None and pulse_age_s < limit_s / 4 for pulse_age_s in pulses)

    def _judge_standstill(self, now: float) -> Sequence[Finding]:
        """A finding when every rank is stalled, or absent beyond the startup time-out, on fresh evidence."""
        missing = self._round.world_size - len(self._seen)
        if not self._seen or len(self._stalled) + missing < self._round.world_size or now < self._look_at:
            return ()
        self._look_at = now + LOOK_AGAIN_S
        seen = self._seen.values()
        if missing and now < self._began_at + self._policy.startup_timeout_s:
            return ()
        if missing and any(each.sample.step is not None for each in seen):
            return ()  # then every rank entered, and an absent one is Unknown: it never says
        absent = tuple(rank for rank in range(self._round.world_size) if rank not in self._seen)
        # Every rank, or the node of an absent rank, must have been heard of within a lost member's time.
        nodes = {share.node for rank in absent if (share := self._round.member_of(rank)) is not None}
        heard_at = [*(each.at for each in seen), *(self._node_at.get(node, -math.inf) for node in nodes)]
        if min(heard_at) < now - self._policy.lost_after_s:
            return ()
        named = name_the_missing(self._seen, absent, self._round.groups())
        # How long everybody must have stood still, beyond what each one's phase allows.
        patience_s = self._undecided_s()
        if named.ranks:
            patience_s = self._patience_s(named.ranks)
            late = {rank: self._seen[rank] for rank in named.ranks if rank in self._seen}
            self._late = {rank: each for rank, each in late.items() if each.sample.phase in _IN_THE_STEP}
        gone = [each.sample.process is ProcessState.GONE for each in seen]
        if any(gone):
            # Ranks that ended with success leave the others to finish up: their last save or evaluation.
            patience_s = math.inf if all(gone) else CHECKPOINT_S_MIN
        if min(each.stalled_s for each in seen) < patience_s:
            return ()
        return (self._finding(self._at_work(named), now),)

    def _at_work(self, named: Named) -> Named:
        """Of several that are missing, those that the others of them may wait for: whose processes the kernel does
        not run; who sleeps and has come no further than any that works; who works.
        """
        seen = {rank: self._seen[rank] for rank in named.ranks if rank in self._seen}
        working = {rank: _PLACES[each.sample.phase] for rank, each in seen.items() if each.works}
        if not working:
            return named
        not_run = [rank for rank, each in seen.items() if each.sample.process in _NOT_RUN]
        first = min(working.values())
        asleep = [
            rank
            for rank, each in seen.items()
            if each.sample.process is ProcessState.RUNNING
            and not each.works
            and each.sample.phase in _BEFORE_THE_MEETING
            and _PLACES[each.sample.phase] <= first
        ]
        if meant := tuple(not_run or asleep):
            return replace(named, ranks=meant, beside=tuple(rank for rank in named.ranks if rank not in meant))
        if {each.sample.process for each in seen.values()} != {ProcessState.RUNNING}:
            return named  # what the kernel does not show may be anything
        beside = tuple(rank for rank in named.ranks if rank not in working)
        return Named(tuple(working), Confidence.PROBABLE, WORKS_ON, works=True, beside=beside)

    def _judge_behind(self, now: float) -> Sequence[Finding]:
        """A finding when the ranks that have not taken up the round are stalled, and the others wait for them."""
        if now < self._look_at or not self._stalled.issuperset(self._behind):
            return ()
        self._look_at = now + LOOK_AGAIN_S
        behind = {rank: self._seen[rank] for rank in sorted(self._behind)}
        entered = [each for rank, each in self._seen.items() if rank not in behind]
        if len(self._seen) < self._round.world_size or any(
            each.at < now - self._policy.lost_after_s or each.sample.process is ProcessState.GONE
            for each in behind.values()
        ):
            return ()
        if any(each.sample.phase is not Phase.STARTUP or each.sample.step is not None for each in entered):
            return ()  # groups that average after many steps alone do not wait yet
        groups = self._round.groups()
        named = name_the_behind(behind, groups) if entered else name_the_missing(behind, (), groups)
        is_told = named.confidence is not Confidence.UNKNOWN
        patience_s = self._deadline_s(LATE_S_MIN if is_told else UNDECIDED_S_MIN)
        if patience_s is not None and is_told:
            patience_s = max(patience_s, self._patience_s(named.ranks))
        if patience_s is None or min(each.stalled_s for each in self._seen.values()) < patience_s:
            return ()
        return (self._finding(self._at_work(named), now),)

    def _finding(self, named: Named, now: float) -> Finding:
        self._found = True
        known = [_began_at(self._seen[rank]) for rank in named.ranks if rank in self._seen]
        if not named.ranks:
            known = [max(_began_at(each) for each in self._seen.values())]
        meant = named.ranks or tuple(sorted(self._seen))[:RANKS_LISTED]
        if named.ranks and self._ended.issuperset(named.ranks):
            says = evidence_of(self._seen, named.ranks, now)
            return early_exit(self._policy.job, named.ranks, self._round.number, min(known), *says)
        subjects = tuple(self._round.subject(rank) for rank in meant)
        stood = [self._seen[rank] for rank in named.ranks or self._seen if rank in self._seen]
        is_stopped = any(each.sample.process in _NOT_RUN for each in stood)
        return Finding(
            kind=FindingKind.HANG,
            subject=subjects[0] if named.ranks else Subject(self._policy.job),
            cause=named.cause,
            evidence=evidence_of(self._seen, (*named.ranks, *named.beside), now),
            confidence=named.confidence,
            began_at=min(known, default=self._began_at),
            round=self._round.number,
            also=subjects[1:] if named.ranks else subjects,
            step=None if is_stopped else _step_of(stood),
            innocent=named.works,
        )


def _step_of(seen: Iterable[Seen]) -> int | None:
    """The last step complete on all of them; None before the first one."""
    steps = [each.sample.step for each in seen]
    known = [each for each in steps if each is not None]
    return min(known) if known and len(known) == len(steps) else None


def _began_at(seen: Seen) -> float:
    """When the rank came to stand, as far as it is known.

    A script that publishes nothing last published when its process started: that it ran until it lost its pulse,
    or was seen stopped, is known better.
    """
    pulse_age_s = seen.sample.pulse_age_s
    if pulse_age_s is None:
        return seen.progress_at if seen.stopped_at is None else max(seen.progress_at, seen.stopped_at)
    # A pulse that still beats says nothing of when the rank came to stand.
    beats = seen.sample.process is not ProcessState.STOPPED and pulse_age_s < STOPPED_S_MIN
    return seen.progress_at if beats else max(seen.progress_at, seen.at - pulse_age_s)


def _is_same_publication(sample: RankSample, before: Seen, now: float) -> bool:
    """Whether a process has published nothing between two samples of it."""
    published_at = now - max(0.0, sample.progress_age_s)
    moved_s = published_at - (before.at - before.sample.progress_age_s)
    return before.sample.pid == sample.pid and moved_s < SAME_PUBLICATION_S


def moved_at(sample: RankSample, before: Seen | None, now: float) -> float:
    """When the rank last moved: it published, or, with nothing published, its collectives went on."""
    published_at = now - max(0.0, sample.progress_age_s)
    if before is None or before.sample.pid != sample.pid:
        return published_at
    same_publication = _is_same_publication(sample, before, now)
    went_on = sample.collective_sequence != before.sample.collective_sequence
    if same_publication and went_on and sample.process is not ProcessState.STOPPED:
        return now
    return max(published_at, before.progress_at) if same_publication else published_at


# How long this job's steps take: the distribution that a hang is judged against.


class StepTimes:
    """The slowest rank's time of each of the last `STEPS_KEPT` steps seen, over rounds.

    Steps are seen at the pace of the reports, so short ones are a sample. The first step seen of each round is
    left out: it pays for compilation, lazy imports and cold caches, and would hide a hang for as long.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._first: int | None = None
        self._newest: int | None = None
        self._slowest = math.inf  # of the newest step; infinite while that is the first, which does not count
        self._trained = 0  # steps completed beyond the first of each round, seen or not

    def begin_round(self) -> None:
        """Steps are counted anew: a round may train steps again."""
        self._first = self._newest = None
        self._slowest = math.inf

    def take(self, step: int, time_s: float) -> None:
        """One rank completed `step` in `time_s` seconds."""
        if step == self._newest and time_s <= self._slowest:
            return  # nearly every sample: all but the slowest rank of a step
        if self._first is None or self._newest is None:
            self._first = self._newest = step
        if step <= self._first or step < self._newest or not 0.0 < time_s < math.inf:
            return
        if step == self._newest or len(self._recent) == STEPS_KEPT:
            forgotten_s = self._recent.pop() if step == self._newest else self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, forgotten_s)]
        self._trained += step - self._newest
        self._newest, self._slowest = step, time_s
        self._recent.append(time_s)
        insort(self._sorted, time_s)

    def p99_s(self) -> float | None:
        """The time 99% of the steps take at most, in seconds; None while too few were trained."""
        if self._trained < STEPS_NEEDED:
            return None
        return self._sorted[math.ceil(QUANTILE * len(self._sorted)) - 1]
