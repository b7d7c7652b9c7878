"""The self-test of a node: which checks each device gets, and what their results come to."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import torch

from holdfast.agent.selftest import judgement, links
from holdfast.agent.selftest.arithmetic import Arithmetic, Shape, digest, minimodel, products
from holdfast.agent.selftest.device import Device, DeviceKind
from holdfast.agent.selftest.memory import SHARES, check_memory
from holdfast.agent.selftest.station import START, Bench, Check, Station
from holdfast.agent.selftest.supervision import Limits, kept_as_found, supervise
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
    golden: judgement.Golden | None = None
    check_s: float | None = None  # the longest one run may take; None: as long as its level allows

    @property
    def runs(self) -> int:
        return self.repeats or judgement.repeats_of(self.level)

    @property
    def size(self) -> Size:
        return SIZES[self.devices[0].kind, self.level]

    @property
    def limit_s(self) -> float:
        return self.check_s or self.size.check_s

    @property
    def promise(self) -> str:
        return judgement.promise(self.level, self.runs)

    def station(self, device: Device, *checks: Check) -> Station:
        """What does `checks` on `device`."""
        return Station(device, checks, f"{self.level}/seed {self.seed}", self.injections)


def run(order: Order) -> Tested:
    """Test, and say what came of it. Forks: see `supervise`."""
    began = time.monotonic()
    limits = Limits(order.limit_s, began + order.size.whole_s)
    with kept_as_found(order.devices):
        results = _results(order, limits)
    return Tested(
        number=order.number,
        level=order.level,
        verdict=judgement.verdict_of(results),
        took_s=round(time.monotonic() - began, 3),
        checks=tuple(results),
        says=judgement.summary(results, order.promise),
    )


def _results(order: Order, limits: Limits) -> Sequence[CheckResult]:
    """Every device by itself first, then those that are sound together, then their bandwidths."""
    found = supervise([_alone(order, device) for device in order.devices], limits)
    results: Sequence[CheckResult] = [result for station in found for result in station]
    if order.golden is not None:
        results = judgement.compare_with_golden(results, order.golden)
    results = judgement.compare_devices(results)
    failed = {each.device for each in results if each.verdict is Verdict.FAILED}
    # A device that is known to be wrong would spoil every sum, and then nobody knows whose fault it is.
    sound = [
        replace(device, name=station[0].device)
        for device, station in zip(order.devices, found, strict=True)
        if not any(each.device in failed for each in station)
    ]
    together = _all_reduced(order, sound, limits)
    if order.tensor > 1:
        names = sorted({each.device for each in results})
        check = Check(
            judgement.NVLINK_DOMAINS,
            lambda bench: links.judge_domains(bench.blank, order.tensor, links.largest_domain(names)),
        )
        together += supervise([order.station(Device(NODE, DeviceKind.CPU), check)], limits)[0]
    return [*results, *together, *_bandwidths(order, sound, limits)]


def _alone(order: Order, device: Device) -> Station:
    """What each device does first: arithmetic that is repeated and hashed, and memory."""

    def repeat(arithmetic: Arithmetic, bench: Bench) -> CheckResult:
        kernel = arithmetic.prepare()
        digests = []
        for _ in range(order.runs):
            digests.append(digest(kernel(), bench.spoiler))
            bench.pulse()
        return judgement.judge_runs(bench.blank, digests, order.promise)

    arithmetic = list(products(device, order.size.product, order.seed))
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model = partial(minimodel, device, order.size.model, order.seed, dtype)
        arithmetic.append(Arithmetic(f"transformer-{name}", model))
    memory = Check("memory", partial(check_memory, device, SHARES[device.kind, order.level]))
    return order.station(device, *(Check(each.name, partial(repeat, each)) for each in arithmetic), memory)


def _all_reduced(order: Order, sound: Sequence[Device], limits: Limits) -> list[CheckResult]:
    """An all-reduce among sound GPUs, or processes of the CPU; nothing when they are too few for one."""
    participants = list(sound)
    if sound and sound[0].kind is not DeviceKind.CUDA:  # of the CPU at least two, and not more than make sense
        most = max(_LEAST_PARTICIPANTS, min(len(sound), _MOST_ON_CPU))
        participants = (participants * _LEAST_PARTICIPANTS)[:most]
    if len(participants) < _LEAST_PARTICIPANTS:
        return []
    with tempfile.TemporaryDirectory(prefix="holdfast-selftest-") as folder:
        stations = []
        for rank, device in enumerate(participants):
            seat = links.Seat(device, rank, len(participants), Path(folder) / "store")
            check = Check(links.ALL_REDUCE, partial(links.check_all_reduce, seat, order.runs, order.limit_s))
            stations.append(order.station(device, check))
        found = supervise(stations, limits)
    return [links.merged([result for station in found for result in station])]


def _bandwidths(order: Order, sound: Sequence[Device], limits: Limits) -> list[CheckResult]:
    """One device after the other: a data sheet promises what a link moves that nobody else uses meanwhile."""
    found: list[CheckResult] = []
    for device in sound:
        checks = [Check("bandwidth-device", partial(links.check_own_memory, device))]
        if device.kind is DeviceKind.CUDA:
            checks.append(Check("bandwidth-host", partial(links.check_host, device)))
            if len(order.devices) > 1:
                checks.append(Check("bandwidth-peer", partial(links.check_peer, device)))
        found += supervise([order.station(device, *checks)], limits)[0]
    # These devices were reached before. When there is no time left for it again, the bandwidths alone are Unknown.
    return [each for each in found if (each.check, each.verdict) != (START, Verdict.UNKNOWN)]
