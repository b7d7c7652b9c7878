"""What each of the crowd is and says: names, joins, reports of busy ranks."""

from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.api.membership import Beat, CheckpointCommitted, Join, RoundEntered, WorkerExited
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import AgentHello, GpuHealth, GpuSample, NodeReport, ProcessState, RankSample

RANKS: Final = 8  # of a node, as a rule
STEP_S: Final = 2.0  # how long a step of the crowd takes
_ENCODE = msgspec.msgpack.Encoder().encode
BEAT: Final = _ENCODE(Beat())


@dataclass(frozen=True, slots=True)
class Part:
    """One of the crowd: member `index` of job `job`, on a node of its own with so many ranks and GPUs."""

    job: str
    index: int
    ranks: int = RANKS

    @property
    def member(self) -> str:
        return f"{self.job.partition('/')[2]}-{self.index}"

    @property
    def node(self) -> str:
        return f"node-{self.member}"

    def join(self) -> bytes:
        address = f"10.{self.index >> 16 & 255}.{self.index >> 8 & 255}.{self.index & 255}"
        ports = (29_400, 29_401, 29_402, 29_403)
        return _ENCODE(Join(self.job, self.member, self.node, "boot", address, self.ranks, ports, warm=True))

    def hello(self) -> bytes:
        return _ENCODE(AgentHello(self.node, "boot", self.job))

    def report(self, sequence: int, *, round_number: int, first_rank: int, running_s: float) -> bytes:
        """What a node of a job that trains says each second."""
        step, into_s = divmod(running_s, STEP_S)
        ranks = tuple(
            RankSample(
                *(round_number, rank, ProcessState.RUNNING, Phase.BACKWARD, into_s, into_s / 2),
                *(0.05, 4_000 + rank, int(step) or None, STEP_S, 2.5, 1.0, 4096, 100 * int(step)),
                snapshot_step=int(step) or None,
            )
            for rank in range(first_rank, first_rank + self.ranks)
        )
        return _ENCODE(NodeReport(self.node, "boot", sequence, ranks=ranks, gpus=_GPUS[: self.ranks]))


_GPUS: Final = tuple(
    GpuSample(f"GPU-8c1f2e5a-0000-4000-8000-{index:012d}", index, GpuHealth.HEALTHY, 61.0, 72.0, 655.5, 0.98)
    for index in range(64)
)


def entered(round_number: int) -> bytes:
    return _ENCODE(RoundEntered(round_number, reentrant=True))


def committed(round_number: int, step: int) -> bytes:
    return _ENCODE(CheckpointCommitted(round_number, step, "/checkpoints"))


def exited(round_number: int, rank: int) -> bytes:
    return _ENCODE(WorkerExited(round_number, rank, 0.0, signal=9, began=True))
