"""The writer of the rank record: what this rank publishes about itself, without a system call.

The layout is `holdfast.api.rankrecord`. Writing is storing bytes into a shared mapping; the sequence lock
around a zone lets a reader in another process tell a whole zone from a torn one. Each zone has exactly one
writing thread: the side thread the pulse zone, the training loop all others. The stores of
one thread become visible in order on x86-64; on processors that reorder stores a reader may, rarely, see one
mixed zone.
"""

import logging
import mmap
import os
import time
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from holdfast.api import rankrecord
from holdfast.api.control import Assignment, record_file_name
from holdfast.api.rankrecord import (
    UNKNOWN_INT,
    BatchPrint,
    BatchZone,
    DeviceAnswer,
    Fingerprint,
    HealthZone,
    Odd,
    Phase,
    ProofZone,
)
from holdfast.api.telemetry import NonFinite
from holdfast.trainer.stepwork import PUBLISHED_EVERY_NS, StepWork, ThreadTimes

logger = logging.getLogger(__name__)


class RankRecord:
    """One rank's record. Publishing before the first `begin` is allowed and says round -1.

    A record of a process that died before is taken over in place, so that a reader which has it mapped sees
    the new process, and a lock the dead one held is released.
    """

    def __init__(self, mapping: mmap.mmap) -> None:
        self._mapping = mapping
        self._step_sequence = _even(mapping, rankrecord.STEP_SEQUENCE_OFFSET)
        others = (
            rankrecord.PULSE_SEQUENCE_OFFSET,
            rankrecord.REPLICA_SEQUENCE_OFFSET,
            rankrecord.HEALTH_SEQUENCE_OFFSET,
            rankrecord.PROOF_SEQUENCE_OFFSET,
            rankrecord.BATCH_SEQUENCE_OFFSET,
        )
        self._work_sequence = _even(mapping, rankrecord.WORK_SEQUENCE_OFFSET)
        self._other_sequences = {offset: _even(mapping, offset) for offset in others}
        self._pid = os.getpid()
        self._times: ThreadTimes | None = None
        self._workers = UNKNOWN_INT
        self._publish_nothing(UNKNOWN_INT, UNKNOWN_INT, UNKNOWN_INT, UNKNOWN_INT)
        self.beat(UNKNOWN_INT)
        mapping[: rankrecord.HEADER.size] = rankrecord.pack_header()

    def _publish_nothing(self, round: int, rank: int, local_rank: int, world_size: int) -> None:
        """That nothing is known of this rank yet."""
        now = time.monotonic_ns()
        self._identity = (round, rank, local_rank, world_size, self._pid)
        self._step = self._step_time_ns = self._completed_ns = UNKNOWN_INT
        self._tokens = self._snapshot_step = UNKNOWN_INT
        self._loss: float | None = None
        self._grad_norm: float | None = None
        self._phase = Phase.STARTUP
        self._phase_started_ns = now
        self._publish(now)
        self._group = 0
        self._fingerprints: tuple[Fingerprint, ...] = ()
        self._publish_replica()
        self._health = HealthZone(round, rank)
        self._publish_health()
        self._proof = ProofZone(round, rank, device=0, answers=())
        self._publish_proof()
        self._work = StepWork(self._times, now)
        self._publish_work(now - PUBLISHED_EVERY_NS)
        self._again = (0, UNKNOWN_INT, UNKNOWN_INT)
        packed = rankrecord.pack_batch(BatchZone(round, rank, ()))
        self._write_zone(rankrecord.BATCH_SEQUENCE_OFFSET, rankrecord.BATCH_OFFSET, packed)

    @property
    def last_step(self) -> int | None:
        """The last step completed since `begin`; None before the first."""
        return None if self._step == UNKNOWN_INT else self._step

    @property
    def was_unhealthy(self) -> bool:
        """Whether a step since `begin` was not finite, and not left out."""
        return self._health.count > 0

    def nonfinite(self) -> NonFinite | None:
        """What is known of steps since `begin` that were not finite, and not left out; None: of none."""
        known = self._health
        if not known.count:
            return None
        age_s = max(0, time.monotonic_ns() - known.at_ns) / 1e9
        return NonFinite(
            step=known.step,
            age_s=age_s,
            last=known.last,
            count=known.count,
            loss=known.loss.word,
            grad_norm=known.grad_norm.word,
            parameters=known.parameters,
        )

    @property
    def step_time_s(self) -> float | None:
        """How long the last step took; None before the second."""
        return None if self._step_time_ns == UNKNOWN_INT else self._step_time_ns / 1e9

    @property
    def current_phase(self) -> Phase:
        return self._phase

    def begin(self, assignment: Assignment, *, waits_on_host: bool = False) -> None:
        """From now on publish for `assignment`: nothing measured yet, phase STARTUP. For the training thread.

        `waits_on_host`: a rank that waits for others sleeps in its training thread, as with collectives on the
        CPU, so that the kernel knows for how long.
        """
        part = assignment
        if self._times is not None:
            self._times.close()
        self._times = ThreadTimes() if waits_on_host else None
        self._workers = UNKNOWN_INT
        self._publish_nothing(part.round, part.rank, part.local_rank, part.world_size)

    def step(
        self,
        step: int,
        loss: float | None,
        grad_norm: float | None,
        tokens: int,
        longest: int = UNKNOWN_INT,
    ) -> None:
        """Step `step` is complete; what follows is the script's own work. None: not measured."""
        now = time.monotonic_ns()
        if self._completed_ns != UNKNOWN_INT:
            self._step_time_ns = now - self._completed_ns
        self._completed_ns = now
        self._step = step
        self._loss = loss
        self._grad_norm = grad_norm
        self._tokens = tokens
        self._phase = Phase.OWN
        self._phase_started_ns = now
        self._publish(now)
        self._work.step(now, tokens, longest)
        if now >= self._work_due_ns:
            self._publish_work(now)

    def phase(self, phase: Phase) -> None:
        """`phase` begins."""
        now = time.monotonic_ns()
        self._phase = phase
        self._phase_started_ns = now
        self._publish(now)
        self._work.phase(phase, now)

    def workers(self, count: int) -> None:
        """So many processes load this rank's data. Published with the next step."""
        self._workers = count
        self._work_due_ns = 0

    def snapshotted(self, step: int) -> None:
        """The state after `step` is whole in the node's memory."""
        self._snapshot_step = step
        self._publish(time.monotonic_ns())

    def fingerprint(self, step: int, value: int, group: int) -> None:
        """The parameters were worth `value` after step `step`; `group` is as in the replica zone."""
        self._group = group
        newest = Fingerprint(step, value, time.monotonic_ns())
        self._fingerprints = (*self._fingerprints, newest)[-rankrecord.FINGERPRINTS_KEPT :]
        self._publish_replica()

    def not_finite(
        self, step: int, *, loss: Odd = Odd.FINITE, grad_norm: Odd = Odd.FINITE, parameters: bool = False
    ) -> None:
        """The loss or the gradient norm of `step` was not finite, or the `parameters` after it are not. Of one
        step both values may be told, one after the other; steps may be told late, but then in order for each of
        the two.
        """
        known = self._health
        if known.step == UNKNOWN_INT or step < known.step:
            changes = {"step": step, "at_ns": time.monotonic_ns(), "loss": loss, "grad_norm": grad_norm}
            changes |= {"last": max(step, known.last), "count": known.count + 1, "parameters": parameters}
        elif step == known.step:
            changes = {"loss": loss or known.loss, "grad_norm": grad_norm or known.grad_norm}
            changes["parameters"] = known.parameters and parameters
        elif step > known.last:
            changes = {"last": step, "count": known.count + 1}
        else:
            return
        self._health = msgspec.structs.replace(known, **changes)
        self._publish_health()

    def skipped(self, step: int, loss: Odd, grad_norm: Odd) -> None:
        """All ranks agreed to leave out `step`; `loss` and `grad_norm` are what this rank's own were."""
        self._health = msgspec.structs.replace(
            self._health,
            skipped=step,
            skipped_count=self._health.skipped_count + 1,
            skipped_loss=loss,
            skipped_grad_norm=grad_norm,
        )
        self._publish_health()

    def answered(self, step: int, value: int, device: int, looks: int) -> None:
        """The device gave `value` for the fixed block after step `step`; the rest is as in the proof zone."""
        told = () if device != self._proof.device else self._proof.answers
        newest = DeviceAnswer(step, value, looks, time.monotonic_ns())
        self._publish_proof(device=device, answers=(*told, newest)[-rankrecord.ANSWERS_KEPT :])

    def changed(self, step: int, *, is_flip: bool) -> None:
        """The parameters changed after step `step`, though nothing updated them: in one bit (`is_flip`), or in
        more. The first such step counts.
        """
        if self._proof.changed_step == UNKNOWN_INT:
            self._publish_proof(changed_step=step, changed_ns=time.monotonic_ns(), is_flip=is_flip)

    def local_norm(self, step: int, norm: float) -> None:
        """The norm of this rank's own gradient in step `step`, before it was reduced."""
        self._publish_proof(local_norm_step=step, local_grad_norm=norm)

    def batch(self, batch: BatchPrint, again_first: int | None) -> None:
        """This rank takes `batch` for its step; `again_first` is the step for which its process took it before."""
        if again_first is not None:
            self._again = (self._again[0] + 1, batch.step, again_first)
        mapping, sequence = self._mapping, self._other_sequences[rankrecord.BATCH_SEQUENCE_OFFSET]
        _write_sequence(mapping, rankrecord.BATCH_SEQUENCE_OFFSET, sequence + 1)
        rankrecord.AGAIN.pack_into(mapping, rankrecord.AGAIN_OFFSET, *self._again)
        rankrecord.BATCH_SLOT.pack_into(mapping, rankrecord.slot_offset(batch.step), *_fields_of(batch))
        _write_sequence(mapping, rankrecord.BATCH_SEQUENCE_OFFSET, sequence + 2)
        self._other_sequences[rankrecord.BATCH_SEQUENCE_OFFSET] = sequence + 2

    def beat(self, collective_sequence: int) -> None:
        """The process runs; its default group has issued `collective_sequence` collectives."""
        packed = rankrecord.PULSE.pack(time.monotonic_ns(), collective_sequence)
        self._write_zone(rankrecord.PULSE_SEQUENCE_OFFSET, rankrecord.PULSE_OFFSET, packed)

    def _publish(self, now_ns: int) -> None:
        sequence = self._step_sequence
        mapping = self._mapping
        loss, grad_norm, measured = self._loss, self._grad_norm, 3
        if loss is None:
            loss, measured = 0.0, 2
        if grad_norm is None:
            grad_norm, measured = 0.0, measured & 1
        _write_sequence(mapping, rankrecord.STEP_SEQUENCE_OFFSET, sequence + 1)
        _write_step(
            mapping,
            rankrecord.STEP_OFFSET,
            *self._identity,
            self._step,
            self._phase,
            measured,  # as `rankrecord.Measured`, whose operators would cost more than the rest of this
            self._phase_started_ns,
            now_ns,
            self._step_time_ns,
            loss,
            grad_norm,
            self._tokens,
            self._snapshot_step,
        )
        _write_sequence(mapping, rankrecord.STEP_SEQUENCE_OFFSET, sequence + 2)
        self._step_sequence = sequence + 2

    def _publish_work(self, now_ns: int) -> None:
        self._work_due_ns = now_ns + PUBLISHED_EVERY_NS
        sequence, mapping = self._work_sequence, self._mapping
        _write_sequence(mapping, rankrecord.WORK_SEQUENCE_OFFSET, sequence + 1)
        about = (*self._identity[:2], self._workers)
        _write_work(mapping, rankrecord.WORK_OFFSET, *about, *self._work.fields())
        _write_sequence(mapping, rankrecord.WORK_SEQUENCE_OFFSET, sequence + 2)
        self._work_sequence = sequence + 2

    def _publish_replica(self) -> None:
        round_, rank, *_ = self._identity
        packed = rankrecord.pack_replica(rankrecord.ReplicaZone(round_, rank, self._group, self._fingerprints))
        self._write_zone(rankrecord.REPLICA_SEQUENCE_OFFSET, rankrecord.REPLICA_OFFSET, packed)

    def _publish_health(self) -> None:
        packed = rankrecord.pack_health(self._health)
        self._write_zone(rankrecord.HEALTH_SEQUENCE_OFFSET, rankrecord.HEALTH_OFFSET, packed)

    def _publish_proof(self, **changed: Any) -> None:
        self._proof = msgspec.structs.replace(self._proof, **changed)
        packed = rankrecord.pack_proof(self._proof)
        self._write_zone(rankrecord.PROOF_SEQUENCE_OFFSET, rankrecord.PROOF_OFFSET, packed)

    def _write_zone(self, sequence_offset: int, offset: int, packed: bytes) -> None:
        """Publish a zone that is not written at every step."""
        sequence = self._other_sequences[sequence_offset]
        _write_sequence(self._mapping, sequence_offset, sequence + 1)
        self._mapping[offset : offset + len(packed)] = packed
        _write_sequence(self._mapping, sequence_offset, sequence + 2)
        self._other_sequences[sequence_offset] = sequence + 2


_fields_of = attrgetter(*BatchPrint.__struct_fields__)
_write_sequence = rankrecord.SEQUENCE.pack_into
_write_step = rankrecord.STEP.pack_into
_write_work = rankrecord.WORK.pack_into


def open_record(run_directory: Path | None, local_rank: int) -> RankRecord:
    """The record of `local_rank` in `run_directory`.

    Without a directory, or when the file cannot be had, the record is private memory that nobody reads:
    training never stops because nobody can watch it.
    """
    if run_directory is not None:
        try:
            path = run_directory / record_file_name(local_rank)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                # Reserved, not only sized: a store into a hole of a full file system kills with SIGBUS.
                os.posix_fallocate(descriptor, 0, rankrecord.SIZE)
                return RankRecord(mmap.mmap(descriptor, rankrecord.SIZE))
            finally:
                os.close(descriptor)
        except OSError as error:
            logger.warning("rank record is not published directory=%s error=%s", run_directory, error)
    return RankRecord(mmap.mmap(-1, rankrecord.SIZE))


def _even(mapping: mmap.mmap, offset: int) -> int:
    """The zone's sequence with nobody writing: a writer that died inside left it odd."""
    (sequence,) = rankrecord.SEQUENCE.unpack_from(mapping, offset)
    return int(sequence) + (int(sequence) & 1)
