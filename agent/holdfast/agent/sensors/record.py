"""One rank record, read while its writers go on writing."""

import os
from collections.abc import Callable
from typing import Final, TypeVar

from holdfast.api.rankrecord import (
    HEALTH_SEQUENCE_OFFSET,
    PROOF_SEQUENCE_OFFSET,
    PULSE_SEQUENCE_OFFSET,
    REPLICA_SEQUENCE_OFFSET,
    SEQUENCE,
    SIZE,
    STEP_SEQUENCE_OFFSET,
    HealthZone,
    ProofZone,
    PulseZone,
    ReplicaZone,
    StepZone,
    check_header,
    unpack_health,
    unpack_proof,
    unpack_pulse,
    unpack_replica,
    unpack_step,
)

Zone = TypeVar("Zone", StepZone, ReplicaZone, PulseZone, HealthZone, ProofZone)

# A writer holds a zone for about a microsecond. One that was preempted or stopped inside holds it for
# milliseconds or for ever; trying longer would only burn the core it may be waiting for.
_ATTEMPTS: Final = 16


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

    def close(self) -> None:
        """Stop reading."""
        os.close(self._file)

    def check(self) -> None:
        """Raises RecordUnreadable when the file is no rank record of this version."""
        problem = check_header(self._bytes(SIZE, 0))
        if problem is not None:
            raise RecordUnreadable(problem)

    def step(self) -> StepZone | None:
        """What the training loop last published; None before its first word. Raises RecordUnreadable."""
        return self._zone(STEP_SEQUENCE_OFFSET, unpack_step)

    def replica(self) -> ReplicaZone | None:
        """The fingerprints the training loop last published; None before it could. Raises RecordUnreadable."""
        return self._zone(REPLICA_SEQUENCE_OFFSET, unpack_replica)

    def health(self) -> HealthZone | None:
        """Which steps the training loop said were not finite; None before it could. Raises RecordUnreadable."""
        return self._zone(HEALTH_SEQUENCE_OFFSET, unpack_health)

    def proof(self) -> ProofZone | None:
        """What the training loop last proved; None before it could. Raises RecordUnreadable."""
        return self._zone(PROOF_SEQUENCE_OFFSET, unpack_proof)

    def pulse(self) -> PulseZone | None:
        """What the side thread last published; None before its first beat. Raises RecordUnreadable."""
        return self._zone(PULSE_SEQUENCE_OFFSET, unpack_pulse)

    def _zone(self, sequence_offset: int, unpack: Callable[[bytes], Zone]) -> Zone | None:
        published = False
        for attempt in range(_ATTEMPTS):
            before = self._bytes(SEQUENCE.size, sequence_offset)
            sequence: int = SEQUENCE.unpack(before)[0]
            published = published or sequence != 0
            if attempt and not published:
                return None  # most ranks never publish a fingerprint, and are looked at ten times a second
            # Zero is also what a writer whose store is not one instruction (struct's pack_into clears the bytes
            # first) shows for a moment, so it never counts as unlocked.
            if sequence == 0 or sequence % 2:
                continue
            record = self._bytes(SIZE, 0)
            if self._bytes(SEQUENCE.size, sequence_offset) == before:
                try:
                    return unpack(record)
                except ValueError as error:
                    raise RecordUnreadable(str(error)) from error
        raise RecordUnreadable("the writer is in the middle of a publication")

    def _bytes(self, size: int, offset: int) -> bytes:
        try:
            found = os.pread(self._file, size, offset)
        except OSError as error:
            raise RecordUnreadable(f"cannot read: {error.strerror}") from error
        if len(found) < size:
            raise RecordUnreadable(f"record ends at byte {offset + len(found)}, expected {SIZE}")
        return found
