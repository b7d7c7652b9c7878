"""The rank record: what one training rank publishes, as a fixed binary layout.

A record is one cache-line-aligned file of `SIZE` bytes per rank, memory-mapped by the trainer that writes it
and the agent that reads it. Little-endian. It has three zones, each with a sequence lock of its own: the training
loop writes the *step* zone at every step and the *replica* zone when it has a new fingerprint, the trainer's side
thread writes the *pulse* zone. A writer makes the zone's sequence odd, writes, makes it even; a reader retries
while it is odd or changed. This module only packs and unpacks bytes; mapping and locking belong to the two ends.

Times are the node's CLOCK_MONOTONIC in nanoseconds: comparable between processes of one node, never between
nodes. A value that was not measured is `UNKNOWN_INT` or NaN, never zero; one that was
measured and is no number is infinite.
"""

import struct
from enum import IntEnum

import msgspec

MAGIC = 0x31444648  # "HFD1"
VERSION = 2
SIZE = 256
UNKNOWN_INT = -1
FINGERPRINTS_KEPT = (
    3  # a reader that looks ten times a second misses none that are 0.1 s apart, and one look may fail
)


class Phase(IntEnum):
    """Where in the step a rank is."""

    STARTUP = 0  # between entering a round and its first step
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    CHECKPOINT = 5
    IDLE = 6  # deliberately not training (evaluation, waiting for a round)


class StepZone(msgspec.Struct, frozen=True, gc=False):
    """What the training loop last published.

    `step` is the last *completed* optimizer step, `UNKNOWN_INT` before the first of the round.
    `published_ns` moves with every publication: a step completed or a phase begun.
    """

    round: int
    rank: int
    local_rank: int
    world_size: int
    pid: int
    step: int
    phase: Phase
    phase_started_ns: int
    published_ns: int
    step_time_ns: int
    loss: float
    grad_norm: float
    tokens: int
    snapshot_step: int


class Fingerprint(msgspec.Struct, frozen=True, gc=False):
    """The parameters as they were after step `step`: an unsigned 64-bit `value`, published at `at_ns`."""

    step: int
    value: int
    at_ns: int


class ReplicaZone(msgspec.Struct, frozen=True, gc=False):
    """The newest fingerprints of `rank` in `round`, oldest first, at most `FINGERPRINTS_KEPT`.

    `group` (unsigned, 64 bit) names what part of the model the rank holds: ranks of one group hold the same.
    """

    round: int
    rank: int
    group: int
    fingerprints: tuple[Fingerprint, ...]


class PulseZone(msgspec.Struct, frozen=True, gc=False):
    """What the side thread last published: proof that the process runs, and how far its collectives got."""

    beat_ns: int
    collective_sequence: int


HEADER = struct.Struct("<IHH")  # magic, version, size
STEP_SEQUENCE_OFFSET = 8
STEP_OFFSET = 16
STEP = struct.Struct("<qiiiiqqqqqddqq")
REPLICA_SEQUENCE_OFFSET = 112
REPLICA_OFFSET = 120
REPLICA = struct.Struct("<qqQ" + "qQq" * FINGERPRINTS_KEPT)
PULSE_SEQUENCE_OFFSET = 216
PULSE_OFFSET = 224
PULSE = struct.Struct("<qq")
SEQUENCE = struct.Struct("<Q")

assert STEP_OFFSET + STEP.size <= REPLICA_SEQUENCE_OFFSET
assert REPLICA_OFFSET + REPLICA.size <= PULSE_SEQUENCE_OFFSET
assert PULSE_OFFSET + PULSE.size <= SIZE


def pack_header() -> bytes:
    """The first eight bytes of every record file."""
    return HEADER.pack(MAGIC, VERSION, SIZE)


def check_header(buffer: bytes | memoryview) -> str | None:
    """None when `buffer` starts a record of this version, otherwise why it does not."""
    if len(buffer) < SIZE:
        return f"record is {len(buffer)} bytes, expected {SIZE}"
    magic, version, size = HEADER.unpack_from(buffer, 0)
    if magic != MAGIC:
        return f"magic is {magic:#x}, expected {MAGIC:#x}"
    if (version, size) != (VERSION, SIZE):
        return f"record version {version} of {size} bytes, expected version {VERSION} of {SIZE}"
    return None


def pack_step(zone: StepZone) -> bytes:
    """The step zone's bytes, to be written at `STEP_OFFSET`."""
    return STEP.pack(
        zone.round,
        zone.rank,
        zone.local_rank,
        zone.world_size,
        zone.pid,
        zone.step,
        zone.phase,
        zone.phase_started_ns,
        zone.published_ns,
        zone.step_time_ns,
        zone.loss,
        zone.grad_norm,
        zone.tokens,
        zone.snapshot_step,
    )


def unpack_step(buffer: bytes | memoryview) -> StepZone:
    """Read the step zone of a whole record. Raises ValueError when the phase is none of `Phase`."""
    fields = list(STEP.unpack_from(buffer, STEP_OFFSET))
    fields[6] = Phase(fields[6])
    return StepZone(*fields)


def pack_replica(zone: ReplicaZone) -> bytes:
    """The replica zone's bytes, to be written at `REPLICA_OFFSET`."""
    filling = [UNKNOWN_INT, 0, UNKNOWN_INT] * (FINGERPRINTS_KEPT - len(zone.fingerprints))
    kept = [field for one in zone.fingerprints for field in (one.step, one.value, one.at_ns)]
    return REPLICA.pack(zone.round, zone.rank, zone.group, *kept, *filling)


def unpack_replica(buffer: bytes | memoryview) -> ReplicaZone:
    """Read the replica zone of a whole record."""
    round_, rank, group, *fields = REPLICA.unpack_from(buffer, REPLICA_OFFSET)
    slots = zip(fields[::3], fields[1::3], fields[2::3], strict=True)
    kept = tuple(Fingerprint(*slot) for slot in slots if slot[0] != UNKNOWN_INT)
    return ReplicaZone(round_, rank, group, kept)


def unpack_pulse(buffer: bytes | memoryview) -> PulseZone:
    """Read the pulse zone of a whole record."""
    return PulseZone(*PULSE.unpack_from(buffer, PULSE_OFFSET))
