"""One child of the self-test: the checks of one device, one after the other, each told of before it begins.

It runs in a forked process of its own, because a device that hangs takes the process that waits for it along.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import torch

from holdfast.agent.selftest.arithmetic import NotHere
from holdfast.agent.selftest.device import Device, DeviceKind, likeness, uuid_of
from holdfast.api.drill import Injection, Spoiler
from holdfast.api.selftest import CheckResult, Verdict

START: Final = "start"
"""What a station does first: reach its device at all."""

PULSE_INTERVAL_S: Final = 0.5

# Sources: the errors after which a GPU has computed something impossible, or cannot go on,
# https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
_DEVICE_FAULTS: Final = (
    "uncorrectable ECC error",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "hardware stack error",
    "unspecified launch failure",
    "launch timed out",
    "NVLink error",
)


class Identified(msgspec.Struct, frozen=True, tag=True):
    """The station reached its device, whose UUID is `device`."""

    device: str


class Began(msgspec.Struct, frozen=True, tag=True):
    """A check begins."""

    check: str


class Done(msgspec.Struct, frozen=True, tag=True):
    """A check ended with this."""

    result: CheckResult


class Pulse(msgspec.Struct, frozen=True, tag=True):
    """Another run of the check has ended: slow is not hung."""


class Skipped(msgspec.Struct, frozen=True, tag=True):
    """The device's make has no such hardware: there is nothing to say about the check."""

    check: str


FromStation = Identified | Began | Pulse | Done | Skipped


@dataclass(frozen=True, slots=True)
class Bench:
    """What a check is given: a result with nothing in it yet but who and what, and what spoils it.

    `pulse` is called after every run.
    """

    blank: CheckResult
    spoiler: Spoiler
    pulse: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `run` is called in the child; it raises NotHere where there is nothing to test."""

    name: str
    run: Callable[[Bench], CheckResult]


@dataclass(frozen=True, slots=True)
class Station:
    """What one child does. `terms` are the test's part of what must be the same for results to be comparable."""

    device: Device
    checks: tuple[Check, ...]
    terms: str
    injections: tuple[Injection, ...] = ()


def attend(station: Station, send: Callable[[FromStation], None]) -> None:
    """Reach the device, then do every check of the station, in order."""
    device = station.device
    try:
        torch.set_num_threads(1)
        if device.kind is DeviceKind.CUDA:
            # A single thread of a CPU needs no telling, and this imports half a compiler.
            torch.use_deterministic_algorithms(mode=True)
            if torch.version.cuda is None:
                raise RuntimeError(f"torch {torch.__version__} is built without CUDA")
            torch.cuda.set_device(device.index)
        name, like = uuid_of(device), likeness(device, station.terms)
    except Exception as error:
        send(Done(failure(CheckResult(START, device.name, Verdict.UNKNOWN, "", 0.0), error)))
        return
    send(Identified(name))
    pulsed = time.monotonic()

    def pulse() -> None:
        nonlocal pulsed
        if (now := time.monotonic()) - pulsed >= PULSE_INTERVAL_S:
            pulsed = now
            send(Pulse())

    for check in station.checks:
        send(Began(check.name))
        began = time.monotonic()
        blank = CheckResult(check.name, name, Verdict.UNKNOWN, "", 0.0, like=like)
        bench = Bench(blank, Spoiler(station.injections, check.name, name), pulse)
        try:
            while bench.spoiler.hangs:
                signal.pause()
            result = check.run(bench)
        except NotHere:
            send(Skipped(check.name))
            continue
        except Exception as error:
            result = failure(blank, error)
        send(Done(msgspec.structs.replace(result, took_s=round(time.monotonic() - began, 4))))


def failure(blank: CheckResult, error: Exception) -> CheckResult:
    """What an error says about the device: an error only broken hardware makes fails it, others say nothing."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        verdict, says = Verdict.UNKNOWN, f"there was no memory for it: {said}"
    elif any(fault in said for fault in _DEVICE_FAULTS):
        verdict, says = Verdict.FAILED, said
    else:
        verdict, says = Verdict.UNKNOWN, f"it could not be run: {said}"
    return msgspec.structs.replace(blank, verdict=verdict, says=says, like="", digest="")
