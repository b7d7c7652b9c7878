"""Writes rank records as a trainer does: through a mapping, under the zones' sequence locks."""

import mmap
import os
from pathlib import Path

import msgspec

from holdfast.api.control import record_file_name
from holdfast.api.rankrecord import (
    BATCH_OFFSET,
    BATCH_SEQUENCE_OFFSET,
    HEALTH_OFFSET,
    HEALTH_SEQUENCE_OFFSET,
    PROOF_OFFSET,
    PROOF_SEQUENCE_OFFSET,
    PULSE,
    PULSE_OFFSET,
    PULSE_SEQUENCE_OFFSET,
    REPLICA_OFFSET,
    REPLICA_SEQUENCE_OFFSET,
    SEQUENCE,
    SIZE,
    STEP_OFFSET,
    STEP_SEQUENCE_OFFSET,
    WORK,
    WORK_OFFSET,
    WORK_SEQUENCE_OFFSET,
    BatchZone,
    HealthZone,
    Phase,
    ProofZone,
    PulseZone,
    ReplicaZone,
    StepZone,
    WorkZone,
    pack_batch,
    pack_header,
    pack_health,
    pack_proof,
    pack_replica,
    pack_step,
)

SECOND_NS = 1_000_000_000


def step_zone(**changed: object) -> StepZone:
    """A rank that trains, published at second 100 of the node's clock."""
    fields: dict[str, object] = {
        "round": 3,
        "rank": 5,
        "local_rank": 1,
        "world_size": 8,
        "pid": os.getpid(),
        "step": 41,
        "phase": Phase.FORWARD,
        "phase_started_ns": 99 * SECOND_NS,
        "published_ns": 100 * SECOND_NS,
        "step_time_ns": SECOND_NS // 2,
        "loss": 2.5,
        "grad_norm": 0.75,
        "tokens": 4096,
        "snapshot_step": 40,
    }
    return StepZone(**(fields | changed))  # type: ignore[arg-type]


def work_zone(**changed: object) -> WorkZone:
    """Of the rank above: four steps after its first one."""
    fields: dict[str, object] = {
        "round": 3,
        "rank": 5,
        "workers": 2,
        "steps": 4,
        "wall_ns": 2 * SECOND_NS,
        "data_ns": SECOND_NS // 2,
        "checkpoint_ns": SECOND_NS // 4,
        "idle_ns": 0,
        "waited_ns": 3 * SECOND_NS // 4,
        "delayed_ns": 0,
        "collected_ns": SECOND_NS // 8,
        "tokens": 16_384,
        "longest": 512,
        "own_ns": SECOND_NS // 16,
    }
    return WorkZone(**(fields | changed))  # type: ignore[arg-type]


class RecordWriter:
    """One mapped record file."""

    def __init__(self, run_dir: Path, local_rank: int = 0) -> None:
        self.path = run_dir / record_file_name(local_rank)
        fresh = self.path.with_suffix(".fresh")
        fresh.write_bytes(pack_header() + bytes(SIZE - len(pack_header())))
        with fresh.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), SIZE)
        fresh.rename(self.path)

    def step(self, zone: StepZone) -> None:
        self._write(STEP_SEQUENCE_OFFSET, STEP_OFFSET, pack_step(zone))

    def replica(self, zone: ReplicaZone) -> None:
        self._write(REPLICA_SEQUENCE_OFFSET, REPLICA_OFFSET, pack_replica(zone))

    def health(self, zone: HealthZone) -> None:
        self._write(HEALTH_SEQUENCE_OFFSET, HEALTH_OFFSET, pack_health(zone))

    def proof(self, zone: ProofZone) -> None:
        self._write(PROOF_SEQUENCE_OFFSET, PROOF_OFFSET, pack_proof(zone))

    def work(self, zone: WorkZone) -> None:
        self._write(WORK_SEQUENCE_OFFSET, WORK_OFFSET, WORK.pack(*msgspec.structs.astuple(zone)))

    def batch(self, zone: BatchZone) -> None:
        self._write(BATCH_SEQUENCE_OFFSET, BATCH_OFFSET, pack_batch(zone))

    def _write(self, sequence_offset: int, offset: int, packed: bytes) -> None:
        self.lock(sequence_offset)
        self.map[offset : offset + len(packed)] = packed
        self.unlock(sequence_offset)

    def pulse(self, zone: PulseZone) -> None:
        self.lock(PULSE_SEQUENCE_OFFSET)
        PULSE.pack_into(self.map, PULSE_OFFSET, zone.beat_ns, zone.collective_sequence)
        self.unlock(PULSE_SEQUENCE_OFFSET)

    def lock(self, offset: int) -> None:
        self._bump(offset)

    def unlock(self, offset: int) -> None:
        self._bump(offset)

    def _bump(self, offset: int) -> None:
        SEQUENCE.pack_into(self.map, offset, SEQUENCE.unpack_from(self.map, offset)[0] + 1)
