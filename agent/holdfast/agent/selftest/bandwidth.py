"""How fast bytes move, against what the model's data sheet promises.

A link that came up with half its lanes, or memory that runs at half its clock, moves at most half of what it
should. A model that is not in the table is Unknown, never slow.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import torch

from holdfast.agent.selftest.device import Device, DeviceKind, model_of
from holdfast.agent.selftest.station import Bench
from holdfast.api.selftest import CheckResult, Verdict

RATIO_MIN: Final = 0.5
"""Below this share of the data sheet a link or memory is broken. Healthy copies reach 0.75 to 0.9 of it."""

_COPIES: Final = 8
_GPU_BYTES: Final = 256 << 20
_CPU_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Expected:
    """A model's data sheet, in GB/s: the link to the host and NVLink in one direction, and own memory."""

    host: float
    memory: float
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


def expected_of(model: str) -> Expected | None:
    """The data sheet of a GPU, None when it is Unknown."""
    names = [name for name in EXPECTED if name in model]
    return EXPECTED[max(names, key=len)] if names else None


def judge_rate(blank: CheckResult, what: str, measured: float, expected: float | None) -> CheckResult:
    """Judge GB/s against the data sheet. Pure."""
    if expected is None:
        says = f"{what} {measured:.1f} GB/s; what this model should reach is not known"
        verdict = Verdict.UNKNOWN
    else:
        says = f"{what} {measured:.1f} GB/s of {expected:.0f} GB/s"
        verdict = Verdict.PASSED if measured >= RATIO_MIN * expected else Verdict.FAILED
    return msgspec.structs.replace(blank, verdict=verdict, says=says, like="")


def check_host(device: Device, bench: Bench) -> CheckResult:
    """Host to device and back, through pinned memory. The slower direction is judged."""
    expected = expected_of(model_of(device))
    there = torch.empty(_GPU_BYTES, dtype=torch.uint8, device=device.torch)
    here = torch.empty(_GPU_BYTES, dtype=torch.uint8, pin_memory=True)
    rates = {
        "to the device": _rate(device, _GPU_BYTES, lambda: there.copy_(here, non_blocking=True)),
        "from the device": _rate(device, _GPU_BYTES, lambda: here.copy_(there, non_blocking=True)),
    }
    slower = min(rates, key=lambda direction: rates[direction])
    return judge_rate(bench.blank, slower, rates[slower], expected.host if expected else None)


def check_own_memory(device: Device, bench: Bench) -> CheckResult:
    """From a device's memory into the same memory; read and written bytes both count."""
    size = _GPU_BYTES if device.kind is DeviceKind.CUDA else _CPU_BYTES
    source = torch.ones(size, dtype=torch.uint8, device=device.torch)
    target = torch.empty_like(source)
    expected = expected_of(model_of(device))
    rate = 2 * _rate(device, size, lambda: target.copy_(source))
    return judge_rate(bench.blank, "memory", rate, expected.memory if expected else None)


def check_peer(device: Device, bench: Bench) -> CheckResult:
    """To the next GPU of this node. Where the GPUs cannot reach each other directly it is Unknown."""
    other = (device.index + 1) % torch.cuda.device_count()
    if not torch.cuda.can_device_access_peer(device.index, other):
        says = f"GPU {device.index} does not reach GPU {other} directly"
        return msgspec.structs.replace(bench.blank, verdict=Verdict.UNKNOWN, says=says, like="")
    source = torch.ones(_GPU_BYTES, dtype=torch.uint8, device=device.torch)
    target = torch.empty(_GPU_BYTES, dtype=torch.uint8, device=torch.device("cuda", other))
    expected = expected_of(model_of(device))
    rate = _rate(device, _GPU_BYTES, lambda: target.copy_(source, non_blocking=True))
    return judge_rate(bench.blank, f"to GPU {other}", rate, expected.peer if expected else None)


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
