"""The devices of this node, and what must answer like them.

CUDA is not touched here: `Device`s are made in the process that forks, `likeness` is asked for in the child.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import torch

from holdfast.agent.launch.host import gpu_count

CHECKS_VERSION: Final = 1
"""Grows whenever a check computes anything else than before: digests of two versions are never compared."""

_DRIVER = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_CPU_FIELDS: Final = ("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part")


class DeviceKind(StrEnum):
    """Where arithmetic is done. AUTO: on the GPUs where there are any, else on the CPU."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class Device:
    """One device to test. `name` is what results carry until a GPU has told its UUID."""

    name: str
    kind: DeviceKind
    index: int = 0

    @property
    def torch(self) -> torch.device:
        return torch.device("cuda", self.index) if self.kind is DeviceKind.CUDA else torch.device("cpu")


def devices_of(
    kind: DeviceKind, environment: Mapping[str, str], stand_ins: Sequence[str] = ()
) -> tuple[Device, ...]:
    """The devices a worker of this environment would see; with `stand_ins` the CPU, under those names.

    GPUs that this torch cannot use are devices all the same, so that their test ends as Unknown.
    """
    if stand_ins:
        return tuple(Device(name, DeviceKind.CPU, index) for index, name in enumerate(stand_ins))
    gpus = gpu_count(environment) if kind is not DeviceKind.CPU else 0
    if kind is DeviceKind.CPU or (kind is DeviceKind.AUTO and gpus == 0):
        return (Device("cpu", DeviceKind.CPU),)
    return tuple(Device(f"cuda:{index}", DeviceKind.CUDA, index) for index in range(max(gpus, 1)))


def uuid_of(device: Device) -> str:
    """The GPU's UUID as NVML spells it; another device's name. Starts CUDA."""
    if device.kind is not DeviceKind.CUDA:
        return device.name
    uuid = str(torch.cuda.get_device_properties(device.index).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def model_of(device: Device) -> str:
    """The GPU's model, or the CPU's. Starts CUDA."""
    if device.kind is DeviceKind.CUDA:
        return torch.cuda.get_device_name(device.index)
    return cpu_model(Path("/proc/cpuinfo").read_text())


def likeness(device: Device, terms: str) -> str:
    """What must answer bit for bit like `device`; `terms` are the test's own (level, seed). Starts CUDA."""
    if device.kind is DeviceKind.CUDA:
        library = f"driver {driver_version()}/cuda {torch.version.cuda}"
    else:
        library = torch.backends.cpu.get_cpu_capability()
    return f"{model_of(device)}/{library}/torch {torch.__version__}/{terms}/checks {CHECKS_VERSION}"


def cpu_model(cpuinfo: str) -> str:
    """Vendor, family, model and stepping of the first core in /proc/cpuinfo: numeric libraries choose by them.

    Source: https://man7.org/linux/man-pages/man5/proc_cpuinfo.5.html
    """
    core = dict(re.findall(r"^(.+?)\s*:\s*(.*)$", cpuinfo.split("\n\n", 1)[0], re.MULTILINE))
    return " ".join(["CPU", *(core[field] for field in _CPU_FIELDS if field in core)])


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The NVIDIA kernel driver's version, "?" when Unknown.

    Source: https://download.nvidia.com/XFree86/Linux-x86_64/550.54.14/README/procinterface.html
    """
    try:
        found = _DRIVER.search(file.read_text())
    except OSError:
        return "?"
    return found[1] if found else "?"
