"""Writes rank records as a trainer does: through a mapping, under the zones' sequence locks."""

import mmap
import os
from pathlib import Path

from holdfast.api.control import record_file_name
from holdfast.api.rankrecord import (
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
    HealthZone,
    Phase,
    ProofZone,
    PulseZone,
    ReplicaZone,
    StepZone,
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
        self.lock(STEP_SEQUENCE_OFFSET)
        packed = pack_step(zone)
        self.map[STEP_OFFSET : STEP_OFFSET + len(packed)] = packed
        self.unlock(STEP_SEQUENCE_OFFSET)

    def replica(self, zone: ReplicaZone) -> None:
        self.lock(REPLICA_SEQUENCE_OFFSET)
        packed = pack_replica(zone)
        self.map[REPLICA_OFFSET : REPLICA_OFFSET + len(packed)] = packed
        self.unlock(REPLICA_SEQUENCE_OFFSET)

    def health(self, zone: HealthZone) -> None:
        self.lock(HEALTH_SEQUENCE_OFFSET)
        packed = pack_health(zone)
        self.map[HEALTH_OFFSET : HEALTH_OFFSET + len(packed)] = packed
        self.unlock(HEALTH_SEQUENCE_OFFSET)

    def proof(self, zone: ProofZone) -> None:
        self.lock(PROOF_SEQUENCE_OFFSET)
        packed = pack_proof(zone)
        self.map[PROOF_OFFSET : PROOF_OFFSET + len(packed)] = packed
        self.unlock(PROOF_SEQUENCE_OFFSET)

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
