"""What the devices of a node do together: an all-reduce among them, and the NVLink domain their ranks must share.

NCCL sums on GPUs, gloo between processes of the CPU. The summands are whole numbers whose sum float32 holds
exactly, so every element has one right answer whatever the order of summing.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch
from torch import distributed
from torch._C._distributed_c10d import FileStore

from holdfast.agent.selftest.arithmetic import raw
from holdfast.agent.selftest.device import Device, DeviceKind
from holdfast.agent.selftest.station import Bench
from holdfast.api.selftest import TOPOLOGY, CheckResult, Verdict
from holdfast.api.telemetry import Unreadable

ALL_REDUCE: Final = "all-reduce"
_ELEMENTS: Final = {DeviceKind.CPU: 1 << 12, DeviceKind.CUDA: 1 << 22}
_MODULUS: Final = 1021  # prime, so that no two ranks' summands line up


@dataclass(frozen=True, slots=True)
class Seat:
    """One device's place: `store` is a file all of them reach."""

    device: Device
    rank: int
    world_size: int
    store: Path


def check_all_reduce(seat: Seat, repeats: int, limit_s: float, bench: Bench) -> CheckResult:
    """Take part in `repeats` all-reduces and compare each result with the right one."""
    _join(seat, limit_s)
    try:
        summand = _summand(seat, seat.rank).to(seat.device.torch)
        right = raw([sum((_summand(seat, rank) for rank in range(1, seat.world_size)), start=_summand(seat, 0))])
        wrong = 0
        for _ in range(repeats):
            total = summand.clone()
            distributed.all_reduce(total)
            found = raw([total])
            bench.spoiler.spoil(found)
            wrong += found != right
            bench.pulse()
    finally:
        distributed.destroy_process_group()
    verdict = Verdict.FAILED if wrong else Verdict.PASSED
    says = f"{wrong} of {repeats} sums wrong" if wrong else f"{repeats} sums exact"
    return CheckResult(ALL_REDUCE, bench.blank.device, verdict, f"{says} among {seat.world_size}", 0.0)


def _join(seat: Seat, limit_s: float) -> None:
    on_gpus = seat.device.kind is DeviceKind.CUDA
    os.environ["NCCL_SOCKET_IFNAME" if on_gpus else "GLOO_SOCKET_IFNAME"] = "lo"  # nothing leaves this node
    distributed.init_process_group(
        "nccl" if on_gpus else "gloo",
        store=FileStore(str(seat.store), seat.world_size),
        rank=seat.rank,
        world_size=seat.world_size,
        timeout=timedelta(seconds=limit_s),
        device_id=seat.device.torch if on_gpus else None,
    )


def _summand(seat: Seat, rank: int) -> torch.Tensor:
    place = torch.arange(_ELEMENTS[seat.device.kind], dtype=torch.int64)
    return ((place * 7 + rank * 13) % _MODULUS).to(torch.float32)


def merged(results: Sequence[CheckResult]) -> CheckResult:
    """What all participants saw, as one result of the node: a wrong sum does not say whose summand was wrong."""
    worst = min(results, key=lambda each: (Verdict.FAILED, Verdict.UNKNOWN, Verdict.PASSED).index(each.verdict))
    says = worst.says if worst.verdict is Verdict.PASSED else f"seen by {worst.device}: {worst.says}"
    return CheckResult(ALL_REDUCE, "node", worst.verdict, says, max(each.took_s for each in results))


def judge_domains(blank: CheckResult, tensor: int, largest: int | Unreadable) -> CheckResult:
    """Whether the ranks that must share one NVLink domain can: between domains links are ten times slower. Pure.

    `largest`: how many of the GPUs that are tested share one domain at most.

    The result is `TOPOLOGY`'s, whatever the check is called that asks the driver: that one failing is a fault.
    """
    if isinstance(largest, Unreadable):
        says = f"the NVLink domains are not known: {largest.reason}"
        return CheckResult(TOPOLOGY, blank.device, Verdict.UNKNOWN, says, blank.took_s)
    says = f"tensor parallel size {tensor} asked of a {largest}-GPU NVLink domain"
    if largest < tensor or largest % tensor:
        return CheckResult(TOPOLOGY, blank.device, Verdict.FAILED, says, blank.took_s)
    return CheckResult(TOPOLOGY, blank.device, Verdict.PASSED, says, blank.took_s)


def check_topology(tensor: int, tested: Sequence[str], blank: CheckResult) -> CheckResult:
    """Ask NVML for the domains; `tested` are the names of the devices whose ranks are to share one."""
    return judge_domains(blank, tensor, _largest(tested))


def _largest(tested: Sequence[str]) -> int | Unreadable:
    try:
        # Only here: a test on the CPU needs no driver and no binding to it.
        from holdfast.agent.nvml.driver import Driver
        from holdfast.agent.nvml.topology import nvlink_domains
    except ImportError as error:
        return Unreadable("nvml", f"{error.name} is not installed")
    domains = nvlink_domains(Driver(time.monotonic))
    if isinstance(domains, Unreadable):
        return domains
    known = {uuid for group in domains.groups for uuid in group}
    # A GPU that was not reached has told no UUID, and neither a slice of one nor a CPU has links of its own.
    if strange := [name for name in tested if name not in known]:
        return Unreadable("nvml", f"the driver knows no GPU by the name of {', '.join(strange)}")
    return domains.largest(tested)
