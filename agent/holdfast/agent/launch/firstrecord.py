"""The first rank record of a worker, written before its script runs: who it is, and nothing about its training.

A script that uses `holdfast.trainer` takes the record over. For one that does not it stays, and is how the agent
knows the process of a rank: whether the kernel runs it, has stopped it, or has ended it. Its phase is IDLE,
because of such a script nobody can say how long a step may take.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from holdfast.api import rankrecord
from holdfast.api.control import RUN_DIRECTORY_VARIABLE, record_file_name
from holdfast.api.rankrecord import UNKNOWN_INT, HealthZone, Phase, ProofZone, PulseZone, ReplicaZone, StepZone

_UNLOCKED = 2  # an even sequence; zero means that nothing was written yet


def write_first_record(environment: Mapping[str, str], *, pid: int, now_ns: int) -> None:
    """Write the record of the worker that `environment` describes, in place of one a dead worker left.

    `now_ns` is CLOCK_MONOTONIC. A process that is no rank of a round gets none. Raises OSError when the run
    directory cannot be written.
    """
    if RUN_DIRECTORY_VARIABLE not in environment:
        return
    local_rank = int(environment["LOCAL_RANK"])
    path = Path(environment[RUN_DIRECTORY_VARIABLE]) / record_file_name(local_rank)
    fresh = path.with_name(f"{path.name}.{pid}")
    fresh.write_bytes(_record(environment, local_rank, pid, now_ns))
    os.replace(fresh, path)


def _record(environment: Mapping[str, str], local_rank: int, pid: int, now_ns: int) -> bytes:
    step = StepZone(
        round=int(environment["HOLDFAST_ROUND"]),
        rank=int(environment["RANK"]),
        local_rank=local_rank,
        world_size=int(environment["WORLD_SIZE"]),
        pid=pid,
        step=UNKNOWN_INT,
        phase=Phase.IDLE,
        phase_started_ns=now_ns,
        published_ns=now_ns,
        step_time_ns=UNKNOWN_INT,
        loss=None,
        grad_norm=None,
        tokens=UNKNOWN_INT,
        snapshot_step=UNKNOWN_INT,
    )
    replica = ReplicaZone(step.round, step.rank, group=0, fingerprints=())
    proof = ProofZone(step.round, step.rank, device=0, answers=())
    pulse = PulseZone(beat_ns=UNKNOWN_INT, collective_sequence=UNKNOWN_INT)
    record = bytearray(rankrecord.SIZE)
    parts = (
        (0, rankrecord.pack_header()),
        (rankrecord.STEP_SEQUENCE_OFFSET, rankrecord.SEQUENCE.pack(_UNLOCKED)),
        (rankrecord.STEP_OFFSET, rankrecord.pack_step(step)),
        (rankrecord.REPLICA_SEQUENCE_OFFSET, rankrecord.SEQUENCE.pack(_UNLOCKED)),
        (rankrecord.REPLICA_OFFSET, rankrecord.pack_replica(replica)),
        (rankrecord.HEALTH_SEQUENCE_OFFSET, rankrecord.SEQUENCE.pack(_UNLOCKED)),
        (rankrecord.HEALTH_OFFSET, rankrecord.pack_health(HealthZone(step.round, step.rank))),
        (rankrecord.PROOF_SEQUENCE_OFFSET, rankrecord.SEQUENCE.pack(_UNLOCKED)),
        (rankrecord.PROOF_OFFSET, rankrecord.pack_proof(proof)),
        (rankrecord.PULSE_SEQUENCE_OFFSET, rankrecord.SEQUENCE.pack(_UNLOCKED)),
        (rankrecord.PULSE_OFFSET, rankrecord.PULSE.pack(pulse.beat_ns, pulse.collective_sequence)),
    )
    for offset, part in parts:
        record[offset : offset + len(part)] = part
    return bytes(record)
