"""The rank record: what one training rank publishes, as a fixed binary layout.

A record is one cache-line-aligned file of `SIZE` bytes per rank, memory-mapped by the trainer that writes it
and the agent that reads it. Little-endian. It has two zones, each with a sequence lock of its own, because
each has one writer: the training loop writes the *step* zone, the trainer's side thread writes the *pulse*
zone. A writer makes the zone's sequence odd, writes, makes it even; a reader retries while it is odd or
changed. This module only packs and unpacks bytes; mapping and locking belong to the two ends.

Times are the node's CLOCK_MONOTONIC in nanoseconds: comparable between processes of one node, never between
nodes. A value that was not measured is `UNKNOWN_INT` or NaN, never zero.
"""

import struct
from enum import IntEnum

import msgspec

MAGIC = 0x31444648  # "HFD1"
VERSION = 1
SIZE = 256
UNKNOWN_INT = -1
UNKNOWN_FINGERPRINT = 2**64 - 1  # fingerprints are unsigned


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
    batch_fingerprint: int
    parameter_fingerprint: int
    snapshot_step: int


class PulseZone(msgspec.Struct, frozen=True, gc=False):
    """What the side thread last published: proof that the process runs, and how far its collectives got."""

    beat_ns: int
    collective_sequence: int


HEADER = struct.Struct("<IHH")  # magic, version, size
STEP_SEQUENCE_OFFSET = 8
STEP_OFFSET = 16
STEP = struct.Struct("<qiiiiqqqqqddqQQq")
PULSE_SEQUENCE_OFFSET = 192
PULSE_OFFSET = 200
PULSE = struct.Struct("<qq")
SEQUENCE = struct.Struct("<Q")

assert STEP_OFFSET + STEP.size <= PULSE_SEQUENCE_OFFSET
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
        zone.batch_fingerprint,
        zone.parameter_fingerprint,
        zone.snapshot_step,
    )


def unpack_step(buffer: bytes | memoryview) -> StepZone:
    """Read the step zone of a whole record. Raises ValueError when the phase is none of `Phase`."""
    fields = list(STEP.unpack_from(buffer, STEP_OFFSET))
    fields[6] = Phase(fields[6])
    return StepZone(*fields)


def unpack_pulse(buffer: bytes | memoryview) -> PulseZone:
    """Read the pulse zone of a whole record."""
    return PulseZone(*PULSE.unpack_from(buffer, PULSE_OFFSET))
