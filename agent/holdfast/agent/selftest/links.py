"""How bytes move: each device's bandwidths, an all-reduce among devices, the NVLink domain that ranks must share.

A link that came up with half its lanes, or memory that runs at half its clock, moves at most half of what the
model's data sheet promises. A model that is not in the table is Unknown, never slow.

In an all-reduce NCCL sums on GPUs, gloo between processes of the CPU. The summands are whole numbers whose sum
float32 holds exactly, so every element has one right answer whatever the order of summing.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from msgspec.structs import replace
from torch import distributed

from holdfast.agent.selftest.arithmetic import raw
from holdfast.agent.selftest.device import Device, DeviceKind, model_of
from holdfast.agent.selftest.station import Bench
from holdfast.api.selftest import TOPOLOGY, CheckResult, Verdict
from holdfast.api.telemetry import Unreadable

if TYPE_CHECKING:  # torch does not say to type checkers that it exports it
    from torch._C._distributed_c10d import FileStore
else:
    from torch.distributed import FileStore

RATIO_MIN: Final = 0.5
"""Below this share of the data sheet a link or memory is broken. Healthy copies reach 0.75 to 0.9 of it."""

_COPIES: Final = 8
_GPU_BYTES: Final = 256 << 20
_CPU_BYTES: Final = 16 << 20
ALL_REDUCE: Final = "all-reduce"
_ELEMENTS: Final = {DeviceKind.CPU: 1 << 12, DeviceKind.CUDA: 1 << 22}
_MODULUS: Final = 1021  # prime, so that no two ranks' summands line up


@dataclass(frozen=True, slots=True)
class Expected:
    """A model's data sheet, in GB/s: the link to the host and NVLink in one direction, and own memory.

    None: Unknown, or there is no such link.
    """

    host: float | None = None
    memory: float | None = None
    peer: float | None = None


# The longest name that a GPU's own name contains wins.
# Source: the data sheets at https://www.nvidia.com/en-us/data-center/ (a100/, h100/, h200/, l40s/). They
# give the bandwidth of interconnects for both directions together, so half of it stands here.
EXPECTED: Final = {
    "A100-SXM4-40GB": Expected(32, 1555, 300),
    "A100-SXM4-80GB": Expected(32, 2039, 300),
    "A100-PCIE-40GB": Expected(32, 1555),
    "A100 80GB PCIe": Expected(32, 1935),
    "H100 80GB HBM3": Expected(64, 3350, 450),
    "H100 PCIe": Expected(64, 2000),
    "H100 NVL": Expected(64, 3900),
    "H200": Expected(64, 4800, 450),
    "L40S": Expected(32, 864),
}


def expected_of(model: str) -> Expected:
    """The data sheet of a GPU."""
    names = [name for name in EXPECTED if name in model]
    return EXPECTED[max(names, key=len)] if names else Expected()


def judge_rate(blank: CheckResult, what: str, measured: float, expected: float | None) -> CheckResult:
    """Judge GB/s against the data sheet. Pure."""
    if expected is None:
        says = f"{what} {measured:.1f} GB/s; what this model should reach is not known"
        verdict = Verdict.UNKNOWN
    else:
        says = f"{what} {measured:.1f} GB/s of {expected:.0f} GB/s"
        verdict = Verdict.PASSED if measured >= RATIO_MIN * expected else Verdict.FAILED
    return replace(blank, verdict=verdict, says=says, like="", rate=measured * 1e9)


def check_host(device: Device, bench: Bench) -> CheckResult:
    """Host to device and back, through pinned memory. The slower direction is judged."""
    there = torch.empty(_GPU_BYTES, dtype=torch.uint8, device=device.torch)
    here = torch.empty(_GPU_BYTES, dtype=torch.uint8, pin_memory=True)
    rates = {
        "to the device": _rate(device, _GPU_BYTES, lambda: there.copy_(here, non_blocking=True)),
        "from the device": _rate(device, _GPU_BYTES, lambda: here.copy_(there, non_blocking=True)),
    }
    slower = min(rates, key=lambda direction: rates[direction])
    return judge_rate(bench.blank, slower, rates[slower], expected_of(model_of(device)).host)


def check_own_memory(device: Device, bench: Bench) -> CheckResult:
    """From a device's memory into the same memory; read and written bytes both count."""
    size = _GPU_BYTES if device.kind is DeviceKind.CUDA else _CPU_BYTES
    source = torch.ones(size, dtype=torch.uint8, device=device.torch)
    target = torch.empty_like(source)
    rate = 2 * _rate(device, size, lambda: target.copy_(source))
    return judge_rate(bench.blank, "memory", rate, expected_of(model_of(device)).memory)


def check_peer(device: Device, bench: Bench) -> CheckResult:
    """To the next GPU of this node. Where the GPUs cannot reach each other directly it is Unknown."""
    other = (device.index + 1) % torch.cuda.device_count()
    if not torch.cuda.can_device_access_peer(device.index, other):
        says = f"GPU {device.index} does not reach GPU {other} directly"
        return replace(bench.blank, verdict=Verdict.UNKNOWN, says=says, like="")
    source = torch.ones(_GPU_BYTES, dtype=torch.uint8, device=device.torch)
    target = torch.empty(_GPU_BYTES, dtype=torch.uint8, device=torch.device("cuda", other))
    rate = _rate(device, _GPU_BYTES, lambda: target.copy_(source, non_blocking=True))
    return judge_rate(bench.blank, f"to GPU {other}", rate, expected_of(model_of(device)).peer)


def _rate(device: Device, size: int, copy: Callable[[], object]) -> float:
    """GB/s of copies of `size` bytes, by the clock of the device that makes them."""
    copy()  # the first one pays for what is set up
    if device.kind is DeviceKind.CUDA:
        with torch.cuda.device(device.index):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            for _ in range(_COPIES):
                copy()
            end.record()
            end.synchronize()
        seconds = float(begin.elapsed_time(end)) * 1e-3
    else:
        began = time.perf_counter()
        for _ in range(_COPIES):
            copy()
        seconds = time.perf_counter() - began
    return _COPIES * size / seconds / 1e9


@dataclass(frozen=True, slots=True)
class Seat:
    """One device's place in an all-reduce: `store` is a file all of them reach."""

    device: Device
    rank: int
    world_size: int
    store: Path


def check_all_reduce(seat: Seat, repeats: int, limit_s: float, bench: Bench) -> CheckResult:
    """Take part in `repeats` all-reduces and compare each result with the right one."""

    def summand_of(rank: int) -> torch.Tensor:
        place = torch.arange(_ELEMENTS[seat.device.kind], dtype=torch.int64)
        return ((place * 7 + rank * 13) % _MODULUS).to(torch.float32)

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
    try:
        summand = summand_of(seat.rank).to(seat.device.torch)
        right = raw([sum(map(summand_of, range(1, seat.world_size)), start=summand_of(0))])
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
        verdict, says = Verdict.UNKNOWN, f"the NVLink domains are not known: {largest.reason}"
    else:
        fits = largest >= tensor and largest % tensor == 0
        verdict = Verdict.PASSED if fits else Verdict.FAILED
        says = f"tensor parallel size {tensor} asked of a {largest}-GPU NVLink domain"
    return CheckResult(TOPOLOGY, blank.device, verdict, says, blank.took_s)


def largest_domain(tested: Sequence[str]) -> int | Unreadable:
    """How many of the GPUs of these names NVML says share one NVLink domain at most."""
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
