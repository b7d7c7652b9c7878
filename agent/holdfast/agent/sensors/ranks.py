"""The ranks of this node: their records in the run directory, and what the kernel says of their processes."""

import itertools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, log2
from types import MappingProxyType
from typing import Final, TypeVar, cast

import msgspec
from msgspec.structs import replace

from holdfast.agent.reading import Reading
from holdfast.agent.sensors.process import ProcessSeen, WatchedProcess
from holdfast.api import rankrecord
from holdfast.api.decoding import decode
from holdfast.api.errors import Malformed
from holdfast.api.rankrecord import (
    UNKNOWN_INT,
    BatchZone,
    HealthZone,
    ProofZone,
    PulseZone,
    ReplicaZone,
    StepZone,
    WorkZone,
)
from holdfast.api.telemetry import (
    BatchAgain,
    BatchTaken,
    DeviceAnswered,
    NonFinite,
    ParametersChanged,
    ParametersFingerprinted,
    ProcessState,
    RankSample,
    SkippedSteps,
    StepWork,
    Unreadable,
)

_RECORD_NAME: Final = re.compile(r"rank-\d+\.record")  # what api.control.record_file_name makes
_NANOSECONDS: Final = 1e9
# Of files in the run directory, which is the workload's, and of records among them, each of which is held open and
# read at every look: no number of files may keep the agent from its work, or fill a report.
_FILES_MAX: Final = 8192
_RECORDS_MAX: Final = 256  # a node has some dozen ranks
_FIRST_STEPS: Final = 16  # of a round, which are told of more often
_STANDS_FOR: Final = 2.0  # times as long as looks are apart as a rule
_WORKED_AFTER_S: Final = 1.0  # what a rank does within a step is nothing to be told
_TELLERS: Final = 64  # ranks that may each tell of a batch in every second

_Told = ParametersFingerprinted | DeviceAnswered | ParametersChanged | BatchTaken
_TOLD: msgspec.msgpack.Decoder[tuple[RankSample, tuple[_Told, ...]]] = msgspec.msgpack.Decoder(
    tuple[RankSample, tuple[_Told, ...]]
)
Locate = Callable[[int, float], int | None]
"""The id, as this process knows it, of the process a record names; None while it is not known. Takes `now`."""

Zone = TypeVar("Zone", StepZone, ReplicaZone, PulseZone, HealthZone, ProofZone, WorkZone, BatchZone)

# A writer holds a zone for about a microsecond. One that was preempted or stopped inside holds it for
# milliseconds or for ever; trying longer would only burn the core it may be waiting for.
_ATTEMPTS: Final = 16


_ZONES: Final[Mapping[type, tuple[int, Callable[[bytes], object]]]] = MappingProxyType(
    {
        StepZone: (rankrecord.STEP_SEQUENCE_OFFSET, rankrecord.unpack_step),
        ReplicaZone: (rankrecord.REPLICA_SEQUENCE_OFFSET, rankrecord.unpack_replica),
        PulseZone: (rankrecord.PULSE_SEQUENCE_OFFSET, rankrecord.unpack_pulse),
        HealthZone: (rankrecord.HEALTH_SEQUENCE_OFFSET, rankrecord.unpack_health),
        ProofZone: (rankrecord.PROOF_SEQUENCE_OFFSET, rankrecord.unpack_proof),
        WorkZone: (rankrecord.WORK_SEQUENCE_OFFSET, rankrecord.unpack_work),
        BatchZone: (rankrecord.BATCH_SEQUENCE_OFFSET, rankrecord.unpack_batch),
    }
)


class RecordUnreadable(Exception):
    """The record, or one zone of it, cannot be read now. Its text says why."""


class RankRecord:
    """An open record file.

    It is read with pread(2) instead of a mapping of its own: the bytes come from the same page-cache page the
    writer has mapped, but a file that is cut short answers with fewer bytes instead of SIGBUS, which would take
    the node's only agent down with it. Each zone is read between two reads of its sequence, as its lock asks.
    """

    def __init__(self, path: str) -> None:
        """Open `path`. Raises OSError, as for a symbolic link: the workers must not choose what we read."""
        # A FIFO under a record's name would block a plain open, and with it the agent, for ever.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        self._size = rankrecord.SIZE

    def close(self) -> None:
        os.close(self._file)

    def check(self) -> None:
        """Raises RecordUnreadable when the file is no rank record of a version that is read."""
        header = self._bytes(rankrecord.HEADER.size, 0)
        size: int = rankrecord.HEADER.unpack(header)[2]
        problem = rankrecord.check_header(header.ljust(size, b"\0"))
        if problem is not None:
            raise RecordUnreadable(problem)
        self._bytes(size, 0)
        self._size = size

    def zone(self, kind: type[Zone]) -> Zone | None:
        """What its writer last published there; None before it ever did, and where its version has no such zone.
        Raises RecordUnreadable.
        """
        sequence_offset, unpack = _ZONES[kind]
        if sequence_offset >= self._size:
            return None
        published = False
        for attempt in range(_ATTEMPTS):
            before = self._bytes(rankrecord.SEQUENCE.size, sequence_offset)
            sequence: int = rankrecord.SEQUENCE.unpack(before)[0]
            published = published or sequence != 0
            if attempt and not published:
                return None  # most ranks never publish a fingerprint, and are looked at ten times a second
            # Zero is also what a writer whose store is not one instruction (struct's pack_into clears the bytes
            # first) shows for a moment, so it never counts as unlocked.
            if sequence == 0 or sequence % 2:
                continue
            record = self._bytes(self._size, 0)
            if self._bytes(rankrecord.SEQUENCE.size, sequence_offset) == before:
                try:
                    return cast(Zone, unpack(record))
                except ValueError as error:
                    raise RecordUnreadable(str(error)) from error
        raise RecordUnreadable("the writer is in the middle of a publication")

    def _bytes(self, size: int, offset: int) -> bytes:
        try:
            found = os.pread(self._file, size, offset)
        except OSError as error:
            raise RecordUnreadable(f"cannot read: {error.strerror}") from error
        if len(found) < size:
            raise RecordUnreadable(f"record ends at byte {offset + len(found)}, expected {rankrecord.SIZE}")
        return found


class RankSensor:
    """Reads every rank record of a run directory. Records may appear, vanish and be replaced at any time.

    `member` is the pod whose directory it is, where there are several: every word in it is that pod's.
    """

    def __init__(self, run_dir: str, *, member: str = "", locate: Locate = lambda pid, now: pid) -> None:
        self.name = f"ranks of {member}" if member else "ranks"
        self._run_dir = run_dir
        self._member = member
        self._locate = locate
        self._followed: dict[str, _FollowedRank] = {}

    def read(self, now: float) -> Reading:
        """One sample per record, also of a rank whose process is gone, for as long as its record is there.

        Every fingerprint, answer and change that is found in a record is told once.
        """
        try:
            with os.scandir(self._run_dir) as entries:
                some = itertools.islice(entries, _FILES_MAX)
                inodes = {entry.name: entry.inode() for entry in some if _RECORD_NAME.fullmatch(entry.name)}
        except FileNotFoundError:
            inodes = {}  # the launcher makes the directory when it has its first worker
        except OSError as error:
            reason = f"cannot list the run directory: {error.strerror}"
            return Reading(unreadable=(Unreadable(self.name, reason),))
        present = {name: inodes[name] for name in sorted(inodes)[:_RECORDS_MAX]}
        self._drop_all_but(present)
        looks = {name: self._look_at(name, inode, now) for name, inode in present.items()}
        unreadable = [
            Unreadable(f"{self._member}/{name}" if self._member else name, look.problem)
            for name, look in looks.items()
            if look.problem is not None
        ]
        if (too_many := len(inodes) - _RECORDS_MAX) > 0:
            unreadable.append(Unreadable(self.name, f"{too_many} records more than are read in one directory"))
        return Reading(
            ranks=tuple(look.sample for look in looks.values() if look.sample is not None),
            events=tuple(itertools.chain.from_iterable(look.told for look in looks.values())),
            unreadable=tuple(unreadable),
        )

    def close(self) -> None:
        self._drop_all_but({})

    def _drop_all_but(self, present: dict[str, int]) -> None:
        # While a record is held open its inode number cannot be given to the file that replaces it.
        for file_name, followed in list(self._followed.items()):
            if present.get(file_name) != followed.inode:
                followed.close()
                del self._followed[file_name]

    def _look_at(self, file_name: str, inode: int, now: float) -> "_Look":
        followed = self._followed.get(file_name)
        if followed is None:
            try:
                record = RankRecord(os.path.join(self._run_dir, file_name))
            except FileNotFoundError:
                return _Look()  # it vanished since the directory was listed
            except OSError as error:
                return _Look(problem=f"cannot open: {error.strerror}")
            followed = self._followed[file_name] = _FollowedRank(record, inode, self._locate, self._member)
        return followed.look(now)


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look at one record gave, and what is wrong with it."""

    sample: RankSample | None = None
    problem: str | None = None
    told: tuple[_Told, ...] = ()


class _FollowedRank:
    """One record file that is there now, its last good content, and the process that writes it."""

    def __init__(self, record: RankRecord, inode: int, locate: Locate, member: str) -> None:
        self.inode = inode
        self._member = member
        self._locate = locate
        self._record = record
        self._checked = False
        self._step: StepZone | None = None
        self._pulse: PulseZone | None = None
        self._health: HealthZone | None = None
        self._work: WorkZone | None = None
        self._stopped = _StoppedTime()
        self._worked = _WorkedTime()
        self._batch: BatchZone | None = None
        self._began = (UNKNOWN_INT, UNKNOWN_INT)  # the round of its batches, and the first step seen of it
        self._fingerprints = _ToldUpTo()
        self._proofs = _ToldUpTo()
        self._batches = _ToldUpTo()
        self._local_grad_norm: float | None = None
        self._process: WatchedProcess | None = None
        self._named_pid = UNKNOWN_INT  # as the record has it

    def look(self, now: float) -> _Look:
        """A sample, or why there is none. Both, when only the content before this one could be read.

        A process that was stopped or killed in the middle of a publication leaves its record locked for ever.
        Its last good content still names it, so that the kernel's word on it is not lost.
        """
        reason: str | None = None
        told: tuple[_Told, ...] = ()
        try:
            if not self._checked:
                self._record.check()
                self._checked = True
            # A zone that was published once does not become unpublished: its writer is in the middle.
            self._step = self._record.zone(StepZone) or self._step
            self._pulse = self._record.zone(PulseZone) or self._pulse
            self._health = self._record.zone(HealthZone) or self._health
            proof = self._record.zone(ProofZone)
            measured = proof is not None and proof.local_norm_step != UNKNOWN_INT
            self._local_grad_norm = proof.local_grad_norm if proof is not None and measured else None
            fingerprints = self._fingerprints.new_in(self._record.zone(ReplicaZone), now)
            self._work = self._record.zone(WorkZone) or self._work
            self._batch = self._record.zone(BatchZone) or self._batch
            batches = self._batches.new_in(self._told_of_batches(), now)
            told = (*self._proofs.new_in(proof, now), *fingerprints, *batches)
        except RecordUnreadable as error:
            reason = str(error)
        if self._step is None or self._step.rank == UNKNOWN_INT:
            return _Look(problem=reason)  # a worker that was given no rank yet is nobody's rank
        seen = self._look_at_process(self._step.pid, now)
        process = seen.state
        sample = sample_of(self._step, self._pulse, process, now, health=self._health)
        worked_s = self._worked.take(self._step, seen.worked_s)
        if worked_s is not None and sample.progress_age_s >= _WORKED_AFTER_S:
            sample = replace(sample, worked_s=worked_s)
        if (work := self._work) is not None and work.round == self._step.round and work.steps > 0:
            sample = replace(sample, work=_work_of(work, self._stopped.take(work, process, now)))
        if (batch := self._batch) is not None and batch.round == self._step.round and batch.again_count:
            sample = replace(sample, again=BatchAgain(batch.again_step, batch.first_step, batch.again_count))
        if self._local_grad_norm is not None:
            sample = replace(sample, local_grad_norm=self._local_grad_norm)
        if self._member:
            sample = replace(sample, member=self._member)
            told = tuple(replace(each, member=self._member) for each in told)
        try:
            # A workload wrote it. What is beyond every bound would have the whole node's report refused.
            decode(_TOLD, msgspec.msgpack.encode((sample, told)))
        except Malformed as error:
            return _Look(problem=f"it tells what no training does: {error}")
        return _Look(sample, reason, told)

    def _told_of_batches(self) -> BatchZone | None:
        """The batches that are worth telling: one in a second or two, the same steps on all ranks, and the first
        of a round, which say how it began. Where there are more than `_TELLERS` ranks so many fewer each, so that
        a large job does not drown in them.
        """
        zone, step = self._batch, self._step
        if zone is None or step is None or not zone.batches:
            return None
        if self._began[0] != zone.round:
            self._began = (zone.round, zone.batches[0].step)
        a_second = _NANOSECONDS / step.step_time_ns if step.step_time_ns > 0 else 1.0
        share = max(1.0, step.world_size / _TELLERS)
        usual, early = (1 << ceil(log2(max(each * share, 1.0))) for each in (a_second, 1.0))
        first_up_to = self._began[1] + _FIRST_STEPS * early
        told = [each for each in zone.batches if each.step % (early if each.step < first_up_to else usual) == 0]
        return replace(zone, batches=tuple(told))

    def close(self) -> None:
        self._record.close()
        if self._process is not None:
            self._process.close()

    def _look_at_process(self, pid: int, now: float) -> ProcessSeen:
        if pid <= 0:
            return ProcessSeen(ProcessState.UNKNOWN)
        if self._process is not None and self._named_pid != pid:
            self._process.close()
            self._process = None
        if self._process is None:
            located = self._locate(pid, now)
            if located is None:
                return ProcessSeen(ProcessState.UNKNOWN)
            self._process, self._named_pid = WatchedProcess(located), pid
        return self._process.look()


class _ToldUpTo:
    """Remembers of one zone up to which step of a rank's round its words were told."""

    def __init__(self) -> None:
        self._about = (UNKNOWN_INT, UNKNOWN_INT)
        self._step = self._changed_step = UNKNOWN_INT

    def new_in(self, zone: ReplicaZone | ProofZone | BatchZone | None, now: float) -> tuple[_Told, ...]:
        """What was not told before, oldest first; but a change comes first: answers after it prove less."""
        if zone is None:
            return ()
        about = (zone.round, zone.rank)
        if about != self._about:
            self._about, self._step, self._changed_step = about, UNKNOWN_INT, UNKNOWN_INT
        new: list[_Told] = []
        if isinstance(zone, ReplicaZone):
            for one in zone.fingerprints:
                if one.step > self._step:
                    age_s = _age_s(one.at_ns, now)
                    new.append(ParametersFingerprinted(*about, zone.group, one.step, one.value, age_s))
        elif isinstance(zone, BatchZone):
            for taken in zone.batches:
                if taken.step > self._step:
                    counts = (_known(taken.samples), _known(taken.tokens))
                    new.append(BatchTaken(*about, taken.step, taken.value, _age_s(taken.at_ns, now), *counts))
        else:
            if zone.changed_step not in (UNKNOWN_INT, self._changed_step):
                self._changed_step = zone.changed_step
                age_s = _age_s(zone.changed_ns, now)
                new.append(ParametersChanged(*about, zone.changed_step, age_s, zone.is_flip))
            for answer in zone.answers:
                if answer.step > self._step:
                    said = (answer.step, answer.value, answer.looks)
                    new.append(DeviceAnswered(*about, zone.device, *said, _age_s(answer.at_ns, now)))
        self._step = max([self._step, *(each.step for each in new if not isinstance(each, ParametersChanged))])
        return tuple(new)


class _StoppedTime:
    """For how long a rank's process was stopped since the sums of its round began: no kernel counts that."""

    def __init__(self) -> None:
        self._round = UNKNOWN_INT
        self._began_at = self._looked_at = 0.0
        self._looks = 0  # after the first one
        self._total_s = 0.0

    def take(self, work: WorkZone, process: ProcessState, now: float) -> float:
        """Seconds, by how the process was found in each look.

        A look says nothing of a time in which the agent itself was stopped: it stands for as long as looks are
        apart as a rule, and no longer.
        """
        if work.round != self._round:
            self._round, self._began_at, self._looks, self._total_s = work.round, now, 0, 0.0
        else:
            pause_s = now - self._looked_at
            usual_s = (self._looked_at - self._began_at) / self._looks if self._looks else pause_s
            if process is ProcessState.STOPPED:
                self._total_s += min(pause_s, _STANDS_FOR * usual_s)
            self._looks += 1
        self._looked_at = now
        return self._total_s


class _WorkedTime:
    """The time of processors that a rank's process used since its training loop last published anything."""

    def __init__(self) -> None:
        self._publication = (UNKNOWN_INT, UNKNOWN_INT)
        self._before_s: float | None = None

    def take(self, step: StepZone, worked_s: float | None) -> float | None:
        """Seconds since the first look at what `step` says; None while it is Unknown."""
        publication = (step.pid, step.published_ns)
        if publication != self._publication:
            self._publication, self._before_s = publication, worked_s
        if worked_s is None or self._before_s is None:
            return None
        return max(0.0, worked_s - self._before_s)


def _work_of(zone: WorkZone, stopped_s: float) -> StepWork:
    waited, delayed = (None if each < 0 else each / _NANOSECONDS for each in (zone.waited_ns, zone.delayed_ns))
    return StepWork(
        steps=zone.steps,
        wall_s=zone.wall_ns / _NANOSECONDS,
        data_s=zone.data_ns / _NANOSECONDS,
        checkpoint_s=zone.checkpoint_ns / _NANOSECONDS,
        idle_s=zone.idle_ns / _NANOSECONDS,
        collected_s=zone.collected_ns / _NANOSECONDS,
        waited_s=waited,
        delayed_s=delayed,
        stopped_s=stopped_s,
        tokens=_known(zone.tokens),
        longest=_known(zone.longest),
        workers=_known(zone.workers),
        own_s=zone.own_ns / _NANOSECONDS,
    )


def sample_of(
    step: StepZone, pulse: PulseZone | None, process: ProcessState, now: float, *, health: HealthZone | None = None
) -> RankSample:
    """A record's content as a sample taken at `now` (CLOCK_MONOTONIC, seconds). What is Unknown is None."""
    if health is not None and health.round != step.round:
        health = None  # A round began between two zones.
    nonfinite = skipped = None
    if health is not None and health.count:
        nonfinite = NonFinite(
            step=health.step,
            age_s=_age_s(health.at_ns, now),
            last=health.last,
            count=health.count,
            loss=health.loss.word,
            grad_norm=health.grad_norm.word,
            parameters=health.parameters,
        )
    if health is not None and health.skipped_count:
        words = health.skipped_loss.word, health.skipped_grad_norm.word
        skipped = SkippedSteps(health.skipped, health.skipped_count, *words)
    return RankSample(
        round=step.round,
        rank=step.rank,
        process=process,
        phase=step.phase,
        progress_age_s=_age_s(step.published_ns, now),
        phase_age_s=_age_s(step.phase_started_ns, now),
        pulse_age_s=_age_s(pulse.beat_ns, now) if pulse and pulse.beat_ns > 0 else None,
        pid=step.pid if step.pid > 0 else None,
        step=_known(step.step),
        step_time_s=step.step_time_ns / _NANOSECONDS if step.step_time_ns >= 0 else None,
        loss=step.loss,
        grad_norm=step.grad_norm,
        tokens=_known(step.tokens),
        collective_sequence=_known(pulse.collective_sequence) if pulse else None,
        snapshot_step=_known(step.snapshot_step),
        nonfinite=nonfinite,
        skipped=skipped,
    )


def _age_s(at_ns: int, now: float) -> float:
    return max(0.0, now - at_ns / _NANOSECONDS)


def _known(value: int) -> int | None:
    return None if value == UNKNOWN_INT else value
