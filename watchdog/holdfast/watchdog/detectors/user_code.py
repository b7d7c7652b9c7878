"""Whose fault an exception in a training script is: the script's own, unless it tells of something outside of it.

An exception that names a device, its driver, a collective, the network or the storage may come from healthy code
on a broken node, and stays with the node. Everything else would come again on any other node, and blames none.
Running out of memory, on the GPU too, is the script's: the model, the batch or what it keeps does not fit. So is a
device-side assert, as a rule an index beyond its tensor, and what Holdfast refuses to take from the script.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass


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
