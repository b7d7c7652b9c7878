"""The rank record: what one training rank publishes, as a fixed binary layout.

A record is one cache-line-aligned file of `SIZE` bytes per rank, memory-mapped by the trainer that writes it
and the agent that reads it. Little-endian. It has zones, each with a sequence lock of its own: the training
loop writes the *step* and the *work* zone at every step, the *batch* zone when the script tells of a batch, the
*replica* zone when it has a new fingerprint, the *health* zone when
a loss or gradient norm is not finite and the *proof* zone when its device or its parameters were checked; the
trainer's side thread writes the *pulse* zone. A record of version 3 ends before the work zone; it is still read,
so that agents are updated before the trainers of jobs.

A writer makes the zone's sequence odd, writes, makes it even; a reader retries while it is odd or changed. This
module only packs and unpacks bytes; mapping and locking belong to the two ends.

Times are the node's CLOCK_MONOTONIC in nanoseconds: comparable between processes of one node, never between
nodes. An integer that was not measured is `UNKNOWN_INT`, never zero. Of the loss and the gradient norm a flag says
whether they were measured, so that a measured NaN or infinity is published as what it is.
"""

import math
import struct
from enum import IntEnum, IntFlag

import msgspec

MAGIC = 0x31444648  # "HFD1"
VERSION = 4
SIZE = 1024
SIZES = {3: 512, VERSION: SIZE}
"""The versions that are read, and how many bytes each has."""
UNKNOWN_INT = -1
FINGERPRINTS_KEPT = (
    3  # a reader that looks ten times a second misses none that are 0.1 s apart, and one look may fail
)
ANSWERS_KEPT = 3
BATCHES_KEPT = 8  # powers of two, up to 128 steps between two looks of a reader


class Phase(IntEnum):
    """Where in the step a rank is."""

    STARTUP = 0  # between entering a round and its first step
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    CHECKPOINT = 5
    IDLE = 6  # deliberately not training (evaluation, waiting for a round)
    OWN = 7  # a step is over and the next batch not asked for: what the script does between the two

    @classmethod
    def _missing_(cls, value: object) -> "Phase":
        """A later trainer tells of one that is not known here: it proves no hang."""
        return cls.IDLE


class Measured(IntFlag):
    """Which of a step's values were measured."""

    NOTHING = 0
    LOSS = 1
    GRAD_NORM = 2


class Odd(IntEnum):
    """What a value that should be a finite number is."""

    FINITE = 0
    NAN = 1
    INFINITE = 2
    MINUS_INFINITE = 3

    @property
    def word(self) -> str:
        """As it is spelled where people and JSON read it: `nan`, `inf`, `-inf`; empty for a finite number."""
        return ("", "nan", "inf", "-inf")[self]


def odd(value: float) -> Odd:
    """What `value` is."""
    if value != value:
        return Odd.NAN
    if value - value == 0.0:
        return Odd.FINITE
    return Odd.INFINITE if value > 0.0 else Odd.MINUS_INFINITE


class StepZone(msgspec.Struct, frozen=True, gc=False):
    """What the training loop last published.

    `step` is the last *completed* optimizer step, `UNKNOWN_INT` before the first of the round.
    `published_ns` moves with every publication: a step completed or a phase begun. `loss` and `grad_norm` are None
    when they were not measured; what was measured may be NaN or infinite.
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
    loss: float | None
    grad_norm: float | None
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


class HealthZone(msgspec.Struct, frozen=True, gc=False):
    """Which steps of `round` were not healthy on `rank`; a reader that looks seldom misses none.

    `step` is the first one whose loss or gradient norm was not finite and that was not skipped (`UNKNOWN_INT`:
    none), noticed at `at_ns`, `loss` and `grad_norm` what they were then, `last` the newest such step and `count`
    how many there were. `skipped` is the newest step that all ranks agreed to leave out, `skipped_count` how many
    there were; `skipped_loss` and `skipped_grad_norm` are what this rank's own values were at that step.
    `parameters`: neither value told of `step`, its parameters were looked at.
    """

    round: int
    rank: int
    step: int = UNKNOWN_INT
    last: int = UNKNOWN_INT
    at_ns: int = UNKNOWN_INT
    count: int = 0
    loss: Odd = Odd.FINITE
    grad_norm: Odd = Odd.FINITE
    skipped: int = UNKNOWN_INT
    skipped_count: int = 0
    skipped_loss: Odd = Odd.FINITE
    skipped_grad_norm: Odd = Odd.FINITE
    parameters: bool = False


class DeviceAnswer(msgspec.Struct, frozen=True, gc=False):
    """What the fixed block came to on this rank's device after step `step`: an unsigned 64-bit `value`.

    By then the parameters had been looked at in `looks` pauses between two updates of this round, and no change
    was found in any of them. Published at `at_ns`.
    """

    step: int
    value: int
    looks: int
    at_ns: int


class ProofZone(msgspec.Struct, frozen=True, gc=False):
    """What `rank` proved in `round`: its newest answers, oldest first, at most `ANSWERS_KEPT`.

    `device` (unsigned, 64 bit) names the make of the device and of the software on it: where it is equal, answers
    must be. `changed_step` is the first step after which the parameters changed though nothing updated them,
    found at `changed_ns`; both `UNKNOWN_INT`: no such step was seen. `is_flip` is whether they changed in one bit,
    as memory changes them. `local_grad_norm` is that of this rank's own
    gradient, before it was reduced, in step `local_norm_step`.
    """

    round: int
    rank: int
    device: int
    answers: tuple[DeviceAnswer, ...]
    changed_step: int = UNKNOWN_INT
    changed_ns: int = UNKNOWN_INT
    local_norm_step: int = UNKNOWN_INT
    local_grad_norm: float = math.nan
    is_flip: bool = False


class WorkZone(msgspec.Struct, frozen=True, gc=False):
    """What the steps of `round` were made of on `rank`, in sums over the `steps` that followed its first one.

    The first step of a round compiles, connects and loads: it is in no sum. `wall_ns` is from the end of the first
    to the end of the newest, and all others are parts of it: waiting for data, saving, not training on purpose
    (`idle_ns`), and of the rest, which is training, `waited_ns` without anything to do (for other ranks, as a
    rule), `delayed_ns` ready to run without a processor, and `collected_ns` in Python's garbage collector.
    `waited_ns` and `delayed_ns` are `UNKNOWN_INT` where nobody can tell: on a GPU the host's thread knows nothing
    of what its device waits for. `tokens` and `longest` (the longest sequence of each step) are `UNKNOWN_INT` when
    a step did not tell them. `workers` are the processes that load its data, `UNKNOWN_INT`: nobody told.
    `own_ns`, a part of training, is what the script did behind its steps before it asked for the next batch: what
    its thread ran, without its waits and delays where these are known.
    """

    round: int
    rank: int
    workers: int
    steps: int
    wall_ns: int
    data_ns: int
    checkpoint_ns: int
    idle_ns: int
    waited_ns: int
    delayed_ns: int
    collected_ns: int
    tokens: int
    longest: int
    own_ns: int = 0


class BatchPrint(msgspec.Struct, frozen=True, gc=False):
    """What `rank` took for `step`: an unsigned 64-bit `value` of its samples, whatever their order.

    The values of all ranks add up (modulo 2**64) to that of the step's whole batch, however many ranks share it.
    `samples` and `tokens` are how many they were; `UNKNOWN_INT`: not told. Published at `at_ns`.
    """

    step: int
    value: int
    samples: int
    tokens: int
    at_ns: int


class BatchZone(msgspec.Struct, frozen=True, gc=False):
    """Batches of `rank` in `round`, oldest first, at most `BATCHES_KEPT`: the newest step of each power of two.

    `again_step` is the newest step whose batch this process had taken before, at `first_step`, and `again_count`
    how many such steps there were since it started; `UNKNOWN_INT` and 0: none.
    """

    round: int
    rank: int
    batches: tuple[BatchPrint, ...]
    again_step: int = UNKNOWN_INT
    first_step: int = UNKNOWN_INT
    again_count: int = 0


class PulseZone(msgspec.Struct, frozen=True, gc=False):
    """What the side thread last published: proof that the process runs, and how far its collectives got."""

    beat_ns: int
    collective_sequence: int


HEADER = struct.Struct("<IHH")  # magic, version, size
STEP_SEQUENCE_OFFSET = 8
STEP_OFFSET = 16
STEP = struct.Struct("<qiiiiqiiqqqddqq")
REPLICA_SEQUENCE_OFFSET = 112
REPLICA_OFFSET = 120
REPLICA = struct.Struct("<qqQ" + "qQq" * FINGERPRINTS_KEPT)
PULSE_SEQUENCE_OFFSET = 216
PULSE_OFFSET = 224
PULSE = struct.Struct("<qq")
HEALTH_SEQUENCE_OFFSET = 256
HEALTH_OFFSET = 264
HEALTH = struct.Struct("<qiiqqqqiBBBB")
PARAMETERS_BIT = 0x80  # of the byte that says what the gradient norm was: the zone is full
PROOF_SEQUENCE_OFFSET = 320
PROOF_OFFSET = 328
PROOF = struct.Struct("<qi?xxxQ" + "qQqq" * ANSWERS_KEPT + "qqqd")
WORK_SEQUENCE_OFFSET = 512
WORK_OFFSET = 520
WORK = struct.Struct("<qiiqqqqqqqqqqq")
BATCH_SEQUENCE_OFFSET = 640
BATCH_OFFSET = 648
BATCH = struct.Struct("<qi")
AGAIN_OFFSET = BATCH_OFFSET + BATCH.size
AGAIN = struct.Struct("<iqq")
BATCH_SLOTS_OFFSET = AGAIN_OFFSET + AGAIN.size
BATCH_SLOT = struct.Struct("<qQqqq")
SEQUENCE = struct.Struct("<Q")

assert STEP_OFFSET + STEP.size <= REPLICA_SEQUENCE_OFFSET
assert REPLICA_OFFSET + REPLICA.size <= PULSE_SEQUENCE_OFFSET
assert PULSE_OFFSET + PULSE.size <= HEALTH_SEQUENCE_OFFSET
assert HEALTH_OFFSET + HEALTH.size <= PROOF_SEQUENCE_OFFSET
assert PROOF_OFFSET + PROOF.size <= WORK_SEQUENCE_OFFSET
assert WORK_OFFSET + WORK.size <= BATCH_SEQUENCE_OFFSET
assert BATCH_SLOTS_OFFSET + BATCHES_KEPT * BATCH_SLOT.size <= SIZE


def pack_header() -> bytes:
    """The first eight bytes of every record file."""
    return HEADER.pack(MAGIC, VERSION, SIZE)


def check_header(buffer: bytes | memoryview) -> str | None:
    """None when `buffer` is a whole record of a version that is read, otherwise why it is not."""
    if len(buffer) < HEADER.size:
        return f"record is {len(buffer)} bytes, expected {SIZE}"
    magic, version, size = HEADER.unpack_from(buffer, 0)
    if magic != MAGIC:
        return f"magic is {magic:#x}, expected {MAGIC:#x}"
    if SIZES.get(version) != size:
        read = " or ".join(f"version {each} of {SIZES[each]}" for each in SIZES)
        return f"record version {version} of {size} bytes, expected {read}"
    if len(buffer) < size:
        return f"record is {len(buffer)} bytes, expected {size}"
    return None


def pack_step(zone: StepZone) -> bytes:
    """The step zone's bytes, to be written at `STEP_OFFSET`."""
    measured = (Measured.LOSS if zone.loss is not None else 0) | (
        Measured.GRAD_NORM if zone.grad_norm is not None else 0
    )
    return STEP.pack(
        zone.round,
        zone.rank,
        zone.local_rank,
        zone.world_size,
        zone.pid,
        zone.step,
        zone.phase,
        measured,
        zone.phase_started_ns,
        zone.published_ns,
        zone.step_time_ns,
        0.0 if zone.loss is None else zone.loss,
        0.0 if zone.grad_norm is None else zone.grad_norm,
        zone.tokens,
        zone.snapshot_step,
    )


def unpack_step(buffer: bytes | memoryview) -> StepZone:
    """Read the step zone of a whole record."""
    fields = list(STEP.unpack_from(buffer, STEP_OFFSET))
    fields[6] = Phase(fields[6])
    measured = fields.pop(7)
    if not measured & Measured.LOSS:
        fields[10] = None
    if not measured & Measured.GRAD_NORM:
        fields[11] = None
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


def pack_health(zone: HealthZone) -> bytes:
    """The health zone's bytes, to be written at `HEALTH_OFFSET`."""
    return HEALTH.pack(
        zone.round,
        zone.rank,
        zone.count,
        zone.step,
        zone.last,
        zone.at_ns,
        zone.skipped,
        zone.skipped_count,
        zone.loss,
        zone.grad_norm | (PARAMETERS_BIT if zone.parameters else 0),
        zone.skipped_loss,
        zone.skipped_grad_norm,
    )


def unpack_health(buffer: bytes | memoryview) -> HealthZone:
    """Read the health zone of a whole record. Raises ValueError when a value is none of `Odd`."""
    round_, rank, count, step, last, at_ns, skipped, skipped_count, *values = HEALTH.unpack_from(
        buffer, HEALTH_OFFSET
    )
    parameters = bool(values[1] & PARAMETERS_BIT)
    values[1] &= ~PARAMETERS_BIT
    loss, norm, skipped_loss, skipped_norm = map(Odd, values)
    return HealthZone(
        round=round_,
        rank=rank,
        step=step,
        last=last,
        at_ns=at_ns,
        count=count,
        loss=loss,
        grad_norm=norm,
        skipped=skipped,
        skipped_count=skipped_count,
        skipped_loss=skipped_loss,
        skipped_grad_norm=skipped_norm,
        parameters=parameters,
    )


def pack_proof(zone: ProofZone) -> bytes:
    """The proof zone's bytes, to be written at `PROOF_OFFSET`."""
    filling = [UNKNOWN_INT, 0, UNKNOWN_INT, UNKNOWN_INT] * (ANSWERS_KEPT - len(zone.answers))
    kept = [field for one in zone.answers for field in (one.step, one.value, one.looks, one.at_ns)]
    return PROOF.pack(
        zone.round,
        zone.rank,
        zone.is_flip,
        zone.device,
        *kept,
        *filling,
        zone.changed_step,
        zone.changed_ns,
        zone.local_norm_step,
        zone.local_grad_norm,
    )


def unpack_proof(buffer: bytes | memoryview) -> ProofZone:
    """Read the proof zone of a whole record."""
    round_, rank, is_flip, device, *fields = PROOF.unpack_from(buffer, PROOF_OFFSET)
    slots = zip(*(fields[place : 4 * ANSWERS_KEPT : 4] for place in range(4)), strict=True)
    kept = tuple(DeviceAnswer(*slot) for slot in slots if slot[0] != UNKNOWN_INT)
    changed_step, changed_ns, local_norm_step, local_grad_norm = fields[4 * ANSWERS_KEPT :]
    return ProofZone(
        round_, rank, device, kept, changed_step, changed_ns, local_norm_step, local_grad_norm, is_flip=is_flip
    )


def power_of_two_in(step: int) -> int:
    """How often 2 divides `step`; what it divides as often as a record has room for counts as one."""
    return min((step & -step).bit_length() or BATCHES_KEPT, BATCHES_KEPT) - 1


def unpack_work(buffer: bytes | memoryview) -> WorkZone:
    """Read the work zone of a whole record of version 4."""
    return WorkZone(*WORK.unpack_from(buffer, WORK_OFFSET))


def pack_batch(zone: BatchZone) -> bytes:
    """The batch zone's bytes, to be written at `BATCH_OFFSET`. Of two batches for one slot the later counts."""
    slots = [BATCH_SLOT.pack(UNKNOWN_INT, 0, UNKNOWN_INT, UNKNOWN_INT, UNKNOWN_INT)] * BATCHES_KEPT
    for one in zone.batches:
        slots[power_of_two_in(one.step)] = BATCH_SLOT.pack(*msgspec.structs.astuple(one))
    again = AGAIN.pack(zone.again_count, zone.again_step, zone.first_step)
    return b"".join((BATCH.pack(zone.round, zone.rank), again, *slots))


def unpack_batch(buffer: bytes | memoryview) -> BatchZone:
    """Read the batch zone of a whole record of version 4."""
    round_, rank = BATCH.unpack_from(buffer, BATCH_OFFSET)
    count, again, first = AGAIN.unpack_from(buffer, AGAIN_OFFSET)
    slots = BATCH_SLOT.iter_unpack(
        buffer[BATCH_SLOTS_OFFSET : BATCH_SLOTS_OFFSET + BATCHES_KEPT * BATCH_SLOT.size]
    )
    kept = tuple(BatchPrint(*slot) for slot in sorted(slots) if slot[0] != UNKNOWN_INT)
    return BatchZone(round_, rank, kept, again, first, count)


def slot_offset(step: int) -> int:
    """Where the batch of `step` is in the zone."""
    return BATCH_SLOTS_OFFSET + power_of_two_in(step) * BATCH_SLOT.size


def unpack_pulse(buffer: bytes | memoryview) -> PulseZone:
    """Read the pulse zone of a whole record."""
    return PulseZone(*PULSE.unpack_from(buffer, PULSE_OFFSET))
