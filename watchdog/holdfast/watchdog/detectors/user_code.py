"""Whose fault an exception in a training script is: the script's own, unless it tells of something outside of it.

An exception that names a device, its driver, a collective, the network or the storage may come from healthy code
on a broken node, and stays with the node. Everything else would come again on any other node, and blames none.
Running out of memory, on the GPU too, is the script's: the model, the batch or what it keeps does not fit. So is a
device-side assert, as a rule an index beyond its tensor, and what Holdfast refuses to take from the script.

So is a rank whose training was over while the others went on training. Its process has done nothing that looks
like a fault: what breaks are the collectives of the others, which wait for it in vain. That a rank ends before the
others proves nothing by itself, since rank 0 may save or evaluate for long; a collective that fails after it does.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy, XidAction
from holdfast.watchdog.detectors.detector import (
    ROUNDS,
    CollectiveBroke,
    Detector,
    Exited,
    RoundInForce,
    Sample,
    Spawned,
)

# What the same way of ending early is known by, from one round to the next.
ALIKE = "a rank ended early"
# A process that ends closes its connections first, and is gone once its memory and devices are released.
ENDING_S = 1.0
SPAWNS_FIX = (
    "Holdfast starts a process for each rank itself: call the function that is spawned once, with the RANK and "
    "the LOCAL_RANK of the environment, and set processesPerNode (--nproc-per-node) to the number of processes"
)


@dataclass(frozen=True, slots=True)
class Outside:
    """One kind of exception that is not the script's fault: how it is told, in the text of its traceback."""

    what: str
    told_by: re.Pattern[str]


# How torch.distributed and its transports (gloo, NCCL) say that a peer, not this process, is the trouble; then how
# CUDA and errno(3) say what broke.
# Source: the exception types of https://docs.pytorch.org/docs/stable/distributed.html, the result codes of
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/types.html#ncclresult-t and of
# https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html, and
# https://man7.org/linux/man-pages/man3/errno.3.html
PEER = Outside(
    "a peer",
    re.compile(
        r"gloo/transport/"
        r"|Connection (?:closed|reset) by peer"
        r"|Timed out waiting \d+ms for (?:send|recv)"
        r"|\bDist(?:Backend|Network|Store)Error\b"
        r"|\bnccl(?:RemoteError|SystemError|InternalError)\b"
        r"|Watchdog caught collective operation timeout",
        re.IGNORECASE,
    ),
)
NETWORK = Outside(
    "the network",
    re.compile(
        r"\bDistError\b|\bnccl\w*Error\b|\bNCCL error\b|Connection (?:refused|reset|aborted)"
        r"|\b(?:Connection(?:Reset|Refused|Aborted)?|BrokenPipe|gai)Error\b|\bsocket\.(?:gaierror|timeout)\b",
        re.IGNORECASE,
    ),
)
DEVICE = Outside(
    "a device or its driver",
    re.compile(
        r"\b(?:CUDA|HIP) error\b"
        r"(?!: (?:out of memory|device-side assert triggered|invalid configuration argument))"
        r"|\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT)_STATUS_(?!ALLOC_FAILED)\w+"
        r"|\bNVML\w*Error\b|NVML: "
        r"|No CUDA GPUs are available|Found no NVIDIA driver|CUDA driver (?:initialization|version|error)"
        r"|uncorrectable ECC|fallen off the bus"
        r"|DataLoader worker .* (?:is killed by signal|exited unexpectedly)",
        re.IGNORECASE,
    ),
)
STORAGE = Outside(
    "the storage or the machine",
    # EIO, ENXIO, ENODEV, ENOSPC, EROFS, ECOMM, ENOTCONN, ETIMEDOUT, EHOSTDOWN, EHOSTUNREACH, ESTALE, EREMOTEIO,
    # EDQUOT; ENFILE is of the whole machine.
    re.compile(r"\[Errno (?:5|6|19|23|28|30|70|107|110|112|113|116|121|122)\]|\bBus error\b"),
)
# The checkpoint library's own word, where the exception begins: all ranks raise it, and no node is to blame.
NOTHING_TO_RESTORE = re.compile(r"holdfast\.checkpoint\.errors\.NothingToRestore: ")
HOLDFAST = Outside("Holdfast itself", re.compile(r"^holdfast\.(?!api\.errors\.InvalidInput\b)", re.MULTILINE))
INTERRUPTED = Outside("somebody who stopped it", re.compile(r"^KeyboardInterrupt\b", re.MULTILINE))

OUTSIDES: Sequence[Outside] = (PEER, NETWORK, DEVICE, STORAGE, HOLDFAST, INTERRUPTED)


def outside_of(raised: str, error: str) -> Outside | None:
    """What outside the script the exception tells of; None: nothing, it is the script's own. `error` is its
    traceback.
    """
    return next((each for each in OUTSIDES if each.told_by.search(error) or each.told_by.search(raised)), None)


class EarlyExitDetector(Detector):
    """Judges `Exited` of ranks whose training is over by what breaks after it in its round: others may go on for
    long without that.

    Where there are replica groups it waits a moment: one that comes in as the others end meets nobody, and the job
    is done once all of those have ended.
    """

    subscribes_to: tuple[type[Sample], ...] = (CollectiveBroke, Exited, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._round = RoundInForce(policy.job)
        self._ended: tuple[float, int] | None = None  # the first to end with success: when, and which rank
        self._broke: dict[int, float] = {}  # when ranks missed a peer
        self._due: float | None = None
        self._found = False

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """A finding as soon as both are known, in whatever order they are told."""
        if self._round.follow(sample):
            self._ended, self._due, self._found = None, None, False
            self._broke.clear()
        match sample:
            case CollectiveBroke(failure=failure) if failure.round == self._round.number:
                self._broke.setdefault(failure.rank, now - max(0.0, failure.age_s))
            case Exited(exit=exit) if exit.round == self._round.number:
                at = now - max(0.0, exit.age_s)
                if exit.is_end:
                    self._ended = (at, exit.rank) if self._ended is None else min(self._ended, (at, exit.rank))
                elif PEER.told_by.search(exit.error):
                    self._broke.setdefault(exit.rank, at)
        if self._found or self._ended is None or not self._broke:
            return ()
        if self._due is None:
            self._due = now + (ENDING_S if self._round.round is not None and self._round.round.groups else 0.0)
        return self.elapse(now)

    def elapse(self, now: float) -> Sequence[Finding]:
        """The finding, once it is due."""
        if self._found or self._due is None or now < self._due or self._ended is None:
            return ()
        ended_at, rank = self._ended
        broke_at, other = min((at, other) for other, at in self._broke.items())
        if rank in self._broke or broke_at < ended_at - ENDING_S:
            self._due = None
            return ()  # it was a victim itself, and gave up
        self._found = True
        broke = Evidence(f"rank {other}", "it went on, and its collective failed", broke_at)
        return (early_exit(self._job, (rank,), self._round.number, ended_at, broke),)

    def next_wakeup(self) -> float | None:
        return None if self._found else self._due


def early_exit(job: str, ranks: Sequence[int], round: int | None, at: float, *evidence: Evidence) -> Finding:
    """The finding that `ranks` ended with success at `at`, while the others of `round` waited for them."""
    named = ", ".join(map(str, ranks))
    word = "rank" if len(ranks) == 1 else "ranks"
    says = "it ended with exit code 0, which the script alone decides: no node is to blame"
    return Finding(
        kind=FindingKind.USER_CODE,
        subject=Subject(job, rank=ranks[0]),
        cause=f"{word} {named} ended with exit code 0 while others went on",
        evidence=(Evidence(f"launcher of rank {ranks[0]}", says, at), *evidence),
        confidence=Confidence.CERTAIN,
        began_at=at,
        round=round,
        also=tuple(Subject(job, rank=rank) for rank in ranks[1:]),
        alike=ALIKE,
    )


class OwnProcessesDetector(Detector):
    """Judges `Spawned`, once for a job: a script that trains so does it on every node, in every round. What
    one rank alone shares out to processes, while those of other nodes wait for it, is the making of its data.
    """

    subscribes_to: tuple[type[Sample], ...] = (Spawned, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._round = RoundInForce(policy.job)
        self._spawn: set[str] = set()  # members of the round
        self._found = False

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """A finding that asks to be told of: the job goes on as it is."""
        if self._round.follow(sample):
            self._spawn.clear()
        if not isinstance(sample, Spawned) or sample.spawned.round != self._round.number or self._found:
            return ()
        told = sample.spawned
        self._spawn.add(sample.member)
        if self._round.round is None or not self._spawn >= {share.member for share in self._round.round.ranks}:
            return ()
        self._found = True
        at = f" at {told.place}" if told.place else ""
        says = f"rank {told.rank} waits in torch.multiprocessing.spawn{at} for {told.processes} processes"
        finding = Finding(
            kind=FindingKind.USER_CODE,
            subject=Subject(self._job, rank=told.rank),
            cause=f"the script trains in processes that it starts itself{at}",
            evidence=(Evidence(f"launcher {sample.member}", says, now),),
            confidence=Confidence.PROBABLE,
            began_at=now,
            round=told.round,
            asks=XidAction.WATCH,
            fix=SPAWNS_FIX,
        )
        return (finding,)
