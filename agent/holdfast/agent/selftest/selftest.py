"""The self-test of a node: which checks each device gets, and what their results come to."""

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

from holdfast.agent.selftest.arithmetic import Arithmetic, Shape, digest, minimodel, products
from holdfast.agent.selftest.bandwidth import check_host, check_own_memory, check_peer
from holdfast.agent.selftest.device import Device, DeviceKind, model_of
from holdfast.agent.selftest.judgement import (
    NVLINK_DOMAINS,
    Golden,
    compare_devices,
    compare_with_golden,
    judge_runs,
    promise,
    repeats_of,
    summary,
    verdict_of,
)
from holdfast.agent.selftest.memory import SHARES, check_memory
from holdfast.agent.selftest.nodewide import ALL_REDUCE, Seat, check_all_reduce, check_topology, merged
from holdfast.agent.selftest.station import START, Bench, Check, Station
from holdfast.agent.selftest.supervision import Limits, supervise
from holdfast.agent.selftest.surroundings import kept_as_found
from holdfast.api.drill import Injection
from holdfast.api.selftest import CheckResult, Tested, TestLevel, Verdict

NODE: Final = "node"
_LEAST_PARTICIPANTS: Final = 2
_MOST_ON_CPU: Final = 8


@dataclass(frozen=True, slots=True)
class Size:
    """How much one run computes, and how long one run and the whole may take. Many short runs beat few long."""

    product: int
    model: Shape
    check_s: float
    whole_s: float


SIZES: Final = {
    (DeviceKind.CPU, TestLevel.LIGHT): Size(96, Shape(2, 8, 32, 2, 1, 32), 30.0, 90.0),
    (DeviceKind.CPU, TestLevel.FULL): Size(256, Shape(2, 32, 64, 4, 2, 64), 60.0, 600.0),
    (DeviceKind.CUDA, TestLevel.LIGHT): Size(2048, Shape(4, 128, 512, 8, 2, 256), 45.0, 90.0),
    (DeviceKind.CUDA, TestLevel.FULL): Size(2048, Shape(8, 256, 512, 8, 4, 512), 60.0, 600.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be tested, and how. `repeats` None: as many as the level promises. `tensor`: see `TestWanted`."""

    level: TestLevel
    devices: tuple[Device, ...]
    number: int = 0
    tensor: int = 1
    repeats: int | None = None
    seed: int = 0
    injections: tuple[Injection, ...] = ()
    golden: Golden | None = None
    check_s: float | None = None  # the longest one run may take; None: as long as its level allows

    @property
    def runs(self) -> int:
        return self.repeats or repeats_of(self.level)

    @property
    def size(self) -> Size:
        return SIZES[self.devices[0].kind, self.level]

    @property
    def limit_s(self) -> float:
        return self.check_s or self.size.check_s

    @property
    def promise(self) -> str:
        return promise(self.level, self.runs)

    @property
    def terms(self) -> str:
        return f"{self.level}/seed {self.seed}"


def run(order: Order) -> Tested:
    """Test, and say what came of it. Forks: see `supervise`."""
    began = time.monotonic()
    limits = Limits(order.limit_s, began + order.size.whole_s)
    with kept_as_found(order.devices):
        results = _results(order, limits)
    return Tested(
        number=order.number,
        level=order.level,
        verdict=verdict_of(results),
        took_s=round(time.monotonic() - began, 3),
        checks=tuple(results),
        says=summary(results, order.promise),
    )


def _results(order: Order, limits: Limits) -> Sequence[CheckResult]:
    found = supervise([_station(order, device) for device in order.devices], limits)
    results: Sequence[CheckResult] = [result for station in found for result in station]
    if order.golden is not None:
        results = compare_with_golden(results, order.golden)
    results = compare_devices(results)
    failed = {each.device for each in results if each.verdict is Verdict.FAILED}
    # A device that is known to be wrong would spoil every sum, and then nobody knows whose fault it is.
    sound = [
        replace(device, name=station[0].device)
        for device, station in zip(order.devices, found, strict=True)
        if not any(each.device in failed for each in station)
    ]
    names = sorted({each.device for each in results})
    together = (*_all_reduced(order, sound, limits), *_topology(order, names, limits))
    return [*results, *together, *_bandwidths(order, sound, limits)]


def _station(order: Order, device: Device) -> Station:
    checks = [Check(each.name, partial(_repeat, order, device, each)) for each in _arithmetic(order, device)]
    checks.append(Check("memory", partial(_memory, order, device)))
    return Station(device, tuple(checks), order.terms, order.injections)


def _bandwidths(order: Order, sound: Sequence[Device], limits: Limits) -> list[CheckResult]:
    """One device after the other: a data sheet promises what a link moves that nobody else uses meanwhile."""
    found = [supervise([_bandwidth_station(order, device)], limits)[0] for device in sound]
    # These devices were reached before. When there is no time left for it again, the bandwidths alone are Unknown.
    return [
        result
        for station in found
        for result in station
        if (result.check, result.verdict) != (START, Verdict.UNKNOWN)
    ]


def _bandwidth_station(order: Order, device: Device) -> Station:
    checks = [Check("bandwidth-device", partial(_own_memory, device))]
    if device.kind is DeviceKind.CUDA:
        checks.append(Check("bandwidth-host", partial(_host, device)))
        if len(order.devices) > 1:
            checks.append(Check("bandwidth-peer", partial(_peer, device)))
    return Station(device, tuple(checks), order.terms, order.injections)


def _arithmetic(order: Order, device: Device) -> list[Arithmetic]:
    found = list(products(device, order.size.product, order.seed))
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model = partial(minimodel, device, order.size.model, order.seed, dtype)
        found.append(Arithmetic(f"transformer-{name}", model))
    return found


def _repeat(order: Order, device: Device, arithmetic: Arithmetic, bench: Bench) -> CheckResult:
    kernel = arithmetic.prepare()
    digests = []
    for _ in range(order.runs):
        digests.append(digest(kernel(), bench.spoiler))
        bench.pulse()
    return judge_runs(bench.blank, digests, order.promise)


def _memory(order: Order, device: Device, bench: Bench) -> CheckResult:
    return check_memory(device, SHARES[device.kind, order.level], bench)


def _own_memory(device: Device, bench: Bench) -> CheckResult:
    return check_own_memory(device, model_of(device), bench.blank)


def _host(device: Device, bench: Bench) -> CheckResult:
    return check_host(device, model_of(device), bench.blank)


def _peer(device: Device, bench: Bench) -> CheckResult:
    return check_peer(device, model_of(device), bench.blank)


def _all_reduced(order: Order, sound: Sequence[Device], limits: Limits) -> list[CheckResult]:
    """An all-reduce among `sound` devices; nothing when they are too few for one."""
    participants = _participants(sound)
    if len(participants) < _LEAST_PARTICIPANTS:
        return []
    with tempfile.TemporaryDirectory(prefix="holdfast-selftest-") as folder:
        store = Path(folder) / "store"
        seats = [Seat(device, rank, len(participants), store) for rank, device in enumerate(participants)]
        found = supervise([_all_reduce(order, seat) for seat in seats], limits)
    return [merged([result for station in found for result in station])]


def _topology(order: Order, names: Sequence[str], limits: Limits) -> Sequence[CheckResult]:
    if order.tensor <= 1:
        return ()
    check = Check(NVLINK_DOMAINS, lambda bench: check_topology(order.tensor, names, bench.blank))
    node = Station(Device(NODE, DeviceKind.CPU), (check,), order.terms, order.injections)
    return supervise([node], limits)[0]


def _participants(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Every GPU; of the CPU at least two processes, and not more than make sense."""
    if not devices or devices[0].kind is DeviceKind.CUDA:
        return tuple(devices)
    return (tuple(devices) * _LEAST_PARTICIPANTS)[: max(_LEAST_PARTICIPANTS, min(len(devices), _MOST_ON_CPU))]


def _all_reduce(order: Order, seat: Seat) -> Station:
    def run(bench: Bench) -> CheckResult:
        return check_all_reduce(seat, order.runs, order.limit_s, bench)

    return Station(seat.device, (Check(ALL_REDUCE, run),), order.terms, order.injections)


def settle_environment() -> None:
    """Make this process fit to be tested from: single-threaded, and deterministic once CUDA starts. Call it first.

    Source: https://docs.nvidia.com/cuda/cublas/#results-reproducibility
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.set_num_threads(1)
