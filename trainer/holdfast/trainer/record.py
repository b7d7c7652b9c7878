"""The writer of the rank record: what this rank publishes about itself, without a system call.

The layout is `holdfast.api.rankrecord`. Writing is storing bytes into a shared mapping; the sequence lock
around a zone lets a reader in another process tell a whole zone from a torn one. Each zone has exactly one
writing thread: the training loop the step and the replica zone, the side thread the pulse zone. The stores of
one thread become visible in order on x86-64; on processors that reorder stores a reader may, rarely, see one
mixed zone.
"""

import logging
import math
import mmap
import os
import time
from pathlib import Path

from holdfast.api import rankrecord
from holdfast.api.control import Assignment, record_file_name
from holdfast.api.rankrecord import FINGERPRINTS_KEPT, UNKNOWN_INT, Fingerprint, Phase, ReplicaZone

logger = logging.getLogger(__name__)


class RankRecord:
    """One rank's record. Publishing before the first `begin` is allowed and says round -1.

    A record of a process that died before is taken over in place, so that a reader which has it mapped sees
    the new process, and a lock the dead one held is released.
    """

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        self._step_sequence = _even(mapping, rankrecord.STEP_SEQUENCE_OFFSET)
        self._replica_sequence = _even(mapping, rankrecord.REPLICA_SEQUENCE_OFFSET)
        self._pulse_sequence = _even(mapping, rankrecord.PULSE_SEQUENCE_OFFSET)
        self._pid = os.getpid()
        self._identity = (UNKNOWN_INT, UNKNOWN_INT, UNKNOWN_INT, UNKNOWN_INT, self._pid)
        self._completed_ns = UNKNOWN_INT
        self._fingerprints: tuple[Fingerprint, ...] = ()
        self._forget()
        self._publish(time.monotonic_ns())
        self._publish_replica()
        self.beat(UNKNOWN_INT)
        mapping[: rankrecord.HEADER.size] = rankrecord.pack_header()

    @property
    def last_step(self) -> int | None:
        """The last step completed since `begin`; None before the first."""
        return None if self._step == UNKNOWN_INT else self._step

    @property
    def step_time_s(self) -> float | None:
        """How long the last step took; None before the second."""
        return None if self._step_time_ns == UNKNOWN_INT else self._step_time_ns / 1e9

    @property
    def current_phase(self) -> Phase:
        return self._phase

    def begin(self, assignment: Assignment) -> None:
        """From now on publish for `assignment`: nothing measured yet, phase STARTUP."""
        self._identity = (
            assignment.round,
            assignment.rank,
            assignment.local_rank,
            assignment.world_size,
            self._pid,
        )
        self._forget()
        self._publish(time.monotonic_ns())
        self._publish_replica()

    def step(self, step: int, loss: float, grad_norm: float, tokens: int) -> None:
        """Step `step` is complete; the next one waits for its data."""
        now = time.monotonic_ns()
        if self._completed_ns != UNKNOWN_INT:
            self._step_time_ns = now - self._completed_ns
        self._completed_ns = now
        self._step = step
        self._loss = loss
        self._grad_norm = grad_norm
        self._tokens = tokens
        self._phase = Phase.DATA
        self._phase_started_ns = now
        self._publish(now)

    def phase(self, phase: Phase) -> None:
        """`phase` begins."""
        now = time.monotonic_ns()
        self._phase = phase
        self._phase_started_ns = now
        self._publish(now)

    def snapshotted(self, step: int) -> None:
        """The state after `step` is whole in the node's memory."""
        self._snapshot_step = step
        self._publish(time.monotonic_ns())

    def fingerprint(self, step: int, value: int, group: int) -> None:
        """The parameters were worth `value` after step `step`; `group` is as in the replica zone."""
        self._group = group
        newest = Fingerprint(step, value, time.monotonic_ns())
        self._fingerprints = (*self._fingerprints, newest)[-FINGERPRINTS_KEPT:]
        self._publish_replica()

    def beat(self, collective_sequence: int) -> None:
        """The process runs; its default group has issued `collective_sequence` collectives."""
        sequence = self._pulse_sequence
        _write_sequence(self._mapping, rankrecord.PULSE_SEQUENCE_OFFSET, sequence + 1)
        _write_pulse(self._mapping, rankrecord.PULSE_OFFSET, time.monotonic_ns(), collective_sequence)
        _write_sequence(self._mapping, rankrecord.PULSE_SEQUENCE_OFFSET, sequence + 2)
        self._pulse_sequence = sequence + 2

    def _forget(self) -> None:
        self._step = UNKNOWN_INT
        self._step_time_ns = UNKNOWN_INT
        self._completed_ns = UNKNOWN_INT
        self._loss = math.nan
        self._grad_norm = math.nan
        self._tokens = UNKNOWN_INT
        self._snapshot_step = UNKNOWN_INT
        self._group = 0
        self._fingerprints = ()
        self._phase = Phase.STARTUP
        self._phase_started_ns = time.monotonic_ns()

    def _publish(self, now_ns: int) -> None:
        sequence = self._step_sequence
        mapping = self._mapping
        _write_sequence(mapping, rankrecord.STEP_SEQUENCE_OFFSET, sequence + 1)
        _write_step(
            mapping,
            rankrecord.STEP_OFFSET,
            *self._identity,
            self._step,
            self._phase,
            self._phase_started_ns,
            now_ns,
            self._step_time_ns,
            self._loss,
            self._grad_norm,
            self._tokens,
            self._snapshot_step,
        )
        _write_sequence(mapping, rankrecord.STEP_SEQUENCE_OFFSET, sequence + 2)
        self._step_sequence = sequence + 2

    def _publish_replica(self) -> None:
        round_, rank, *_ = self._identity
        packed = rankrecord.pack_replica(ReplicaZone(round_, rank, self._group, self._fingerprints))
        sequence, offset = self._replica_sequence, rankrecord.REPLICA_OFFSET
        _write_sequence(self._mapping, rankrecord.REPLICA_SEQUENCE_OFFSET, sequence + 1)
        self._mapping[offset : offset + len(packed)] = packed
        _write_sequence(self._mapping, rankrecord.REPLICA_SEQUENCE_OFFSET, sequence + 2)
        self._replica_sequence = sequence + 2


_write_sequence = rankrecord.SEQUENCE.pack_into
_write_step = rankrecord.STEP.pack_into
_write_pulse = rankrecord.PULSE.pack_into


def open_record(run_directory: Path | None, local_rank: int) -> RankRecord:
    """The record of `local_rank` in `run_directory`.

    Without a directory, or when the file cannot be had, the record is private memory that nobody reads:
    training never stops because nobody can watch it.
    """
    if run_directory is not None:
        try:
            return RankRecord(_map_file(run_directory / record_file_name(local_rank)))
        except OSError as error:
            logger.warning("rank record is not published directory=%s error=%s", run_directory, error)
    return RankRecord(mmap.mmap(-1, rankrecord.SIZE))


def _map_file(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # Reserved, not only sized: a store into a hole of a full file system kills the process with SIGBUS.
        os.posix_fallocate(descriptor, 0, rankrecord.SIZE)
        return mmap.mmap(descriptor, rankrecord.SIZE)
    finally:
        os.close(descriptor)


def _even(mapping: mmap.mmap, offset: int) -> int:
    """The zone's sequence with nobody writing: a writer that died inside left it odd."""
    (sequence,) = rankrecord.SEQUENCE.unpack_from(mapping, offset)
    return int(sequence) + (int(sequence) & 1)
