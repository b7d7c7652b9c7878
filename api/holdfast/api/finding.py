"""A detector's judgement: what is wrong with whom, on what evidence, how sure.

Findings are the only way a fault reaches the brain. They name one subject and carry the observations that
led to them, so that every later decision can be explained.
"""

from enum import StrEnum
from typing import Final

import msgspec

from holdfast.api.policy import XidAction
from holdfast.api.xid import Recovery


class FindingKind(StrEnum):
    """The fault classes detectors judge."""

    PROCESS_EXIT = "ProcessExit"
    USER_CODE = "UserCode"  # the script raised an exception that no device, network or storage explains
    NOTHING_TO_RESTORE = "NothingToRestore"  # checkpoints are there, or were asked for, and none can be used
    COLLECTIVE_FAILED = "CollectiveFailed"  # a symptom: somebody else's fault, as a rule
    MEMBER_LOST = "MemberLost"
    HANG = "Hang"
    XID = "Xid"
    GPU_LOST = "GpuLost"
    CONDITION = "Condition"  # of a GPU, a link or the node; `cause` names it
    THERMAL = "Thermal"
    SELF_TEST = "SelfTest"
    NON_FINITE = "NonFinite"  # a loss or gradient norm that is NaN or infinite
    DIVERGENCE = "Divergence"  # a loss that rose and stays, of most ranks or of one
    STRAGGLER = "Straggler"  # all wait for a rank, or for what all share; `slow` says why, and what it costs
    DATA = "Data"  # batches that are wrong, amounts of work that differ, or data that come too slowly
    CORRUPTION = "Corruption"  # replicas differ, a device computes wrong, or memory does not keep what is in it
    CRASH_LOOP = "CrashLoop"


SENSED: Final = frozenset({FindingKind.XID, FindingKind.GPU_LOST, FindingKind.CONDITION, FindingKind.THERMAL})
"""What an agent's sensors read from drivers and kernel: no process of a job can say it."""
OF_NODES: Final = SENSED | {FindingKind.MEMBER_LOST, FindingKind.SELF_TEST, FindingKind.CORRUPTION}
"""What takes a node out of a job; a hang or a dead process leaves it in."""


class Confidence(StrEnum):
    """How sure a detector is of the culprit it names. UNKNOWN: it sees the fault, not who caused it."""

    CERTAIN = "Certain"
    PROBABLE = "Probable"
    UNKNOWN = "Unknown"


class ProvedBy(StrEnum):
    """What says that a step is right. What is worth more is not overruled by what is worth less."""

    REPLICAS = "replicas"  # all ranks that must hold equal parameters did: whatever differed would have shown
    DEVICES = "devices"  # nobody holds the same; all devices answered right, no memory was seen to change


class SlowCause(StrEnum):
    """What makes a rank slow. Another machine may mend MACHINE and SOFTWARE, and none of the others."""

    MACHINE = "Machine"  # its own computing takes longer than its peers': clocks, heat, a PCIe link
    DATA = "Data"  # it waits for its own data loader
    SHAPE = "Shape"  # it has more to do: longer sequences, more tokens, the last stage of a pipeline
    SOFTWARE = "Software"  # garbage collection, its checkpoints, a noisy neighbour on the host, a stopped process
    EVERYBODY = "Everybody"  # all are slower than they were: storage, network


SHORTEST_STEP_S: Final = 1e-9
"""What takes less is no step: nothing is reckoned with it."""


class Slowness(msgspec.Struct, frozen=True):
    """What a STRAGGLER costs: without it a step, which takes `step_s` seconds now, would take `excess_s` less."""

    cause: SlowCause
    step_s: float
    excess_s: float

    @property
    def says(self) -> str:
        """The cause, as findings and incidents have it."""
        return f"slow: {self.cause.value.lower()}"

    @property
    def share(self) -> float:
        """Of each step, the share that would be saved, from 0 to 1; 0.0 where a step takes no time."""
        if self.step_s < SHORTEST_STEP_S:
            return 0.0
        return min(1.0, max(0.0, self.excess_s / self.step_s))

    def steps_in(self, seconds: float) -> int:
        """How many steps take so long; 0 where a step takes no time."""
        return round(max(0.0, seconds) / self.step_s) if self.step_s >= SHORTEST_STEP_S else 0


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who is meant. The most exact field that is set is the culprit; None is "not known or not applicable". `peer`
    is the node at the other end, where it is the link between two that is meant.
    """

    job: str
    node: str | None = None
    member: str | None = None
    rank: int | None = None
    gpu: str | None = None
    peer: str | None = None

    def __str__(self) -> str:
        parts = [
            self.node and (f"link {self.node} - {self.peer}" if self.peer else f"node {self.node}"),
            self.gpu and f"GPU {self.gpu}",
            self.rank is not None and f"rank {self.rank}",
        ]
        return " ".join(part for part in parts if part) or "unknown"


class Evidence(msgspec.Struct, frozen=True):
    """One observation: where it came from, what it said, when (watchdog clock, seconds)."""

    source: str
    says: str
    at: float


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One judgement. `began_at` is the detector's best estimate of when the fault happened.

    `cause` is the class compared when the same fault shows on two nodes ("xid 79", "signal 9"), `round` the
    round it concerns (None: the node itself, whatever runs on it), `error` the text a human wants to read.
    `asks` is what a detector's catalogue or policy asks for, None where the ladder knows by itself. Of a
    MEMBER_LOST whose subject is nobody, `also` are members that were lost at once, for a reason they share. Of a
    CORRUPTION, `step` is where replicas differed and `agreed_step` the last one before at which all were equal
    (None: none). Of a HANG, `step` is the last one that the ranks named had completed, where the kernel would run
    their processes (None: it would not, or they had completed none). Of a NON_FINITE, `step` is the first such
    step, and `skipped` says that all ranks left it out. Of a DIVERGENCE, `step` is the first that may be too
    high. Of a STRAGGLER, `slow` says what makes it slow, and `step` is the newest one looked at; it `asks` to be
    told only (WATCH), or leaves it to the ladder (None). Of DATA, `step` is one whose batch is wrong (None: no
    batch is).
    `alike` is set when the script failed in a way that another try will not mend, as every rank of the round does
    in one way: it names that way, the same for the same failure in the next round. `trace` is that of the
    exception that the script raised, "" where it ended in another way; `began`: it had shown a sign of training by
    then. When the next try raises again what this one did before any such sign, there is no further one.
    `fix` is what mends a mistake of the script that no further try can, and says that none is of use. Of a
    MEMBER_LOST or a HANG, `innocent` says that the node had no part in it. `own_rule` says that only the job's own
    spec asks for what is done, and neither the catalogues nor the cluster: it is no reason for other jobs.
    `remedy` is what brings the node back, None where kind and cause tell.
    """

    kind: FindingKind
    subject: Subject
    cause: str
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    began_at: float
    round: int | None = None
    error: str = ""
    xid: int | None = None
    recovery_action: int | None = None
    also: tuple[Subject, ...] = ()  # further subjects of the same fault (several ranks did not arrive)
    asks: XidAction | None = None
    step: int | None = None
    agreed_step: int | None = None
    skipped: bool = False
    alike: str = ""
    trace: str = ""
    began: bool = False
    fix: str = ""
    innocent: bool = False
    own_rule: bool = False
    remedy: Recovery | None = None
    slow: Slowness | None = None
