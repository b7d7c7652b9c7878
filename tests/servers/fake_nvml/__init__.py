"""An NVIDIA machine for machines without one: a scripted libnvidia-ml.so.1 for the real bindings to load.

    machine = FakeNvml(tmp_path)            # eight healthy GPUs, idle at 45 degrees
    machine.load()                          # in this process; elsewhere: Popen(..., env=machine.environment())
    machine.gpus[3].xid(79)
    machine.gpus[3].lose()

What is scripted holds for the next call. Events reach only who is listening, as with the real driver.
"""

import ctypes
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pynvml

from fake_nvml.machine import ABSENT, EVENTS, NAMES, GpuLayout, MachineLayout, Value

__all__ = ["FakeGpu", "FakeNvml", "Value", "build", "gpu_uuid"]

NO_PERMISSION = 4
GPU_IS_LOST = 15
RESET_REQUIRED = 16
NOT_LOADED = 9
UNKNOWN_ERROR = 999
# What a driver before 535 does not have.
NEWER_CALLS = (
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetGpuFabricInfoV",
)
NEWER_FIELDS = (226, 227, 230, 269, 270, 271)
_CLASSIC_EVENTS = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
_NEWER_EVENTS = pynvml.nvmlEventTypeGpuUnavailableError | pynvml.nvmlEventTypeGpuRecoveryAction
_SPACE = uuid.UUID("0d0f4b3e-5f0e-4f57-8a63-2f5e6f1f9c11")
_SOURCE = Path(__file__).parent / "libnvidia-ml.c"


def gpu_uuid(index: int) -> str:
    """The UUID of the machine's GPU of that number."""
    return f"GPU-{uuid.uuid5(_SPACE, str(index))}"


@cache
def build() -> Path:
    """The folder with libnvidia-ml.so.1, compiled once for each text of its source. Raises without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("The fake NVML needs a C compiler: install the package build-essential.")
    source = _SOURCE.read_bytes()
    folder = Path(tempfile.gettempdir()) / f"fake-nvml-{os.getuid()}-{hashlib.sha256(source).hexdigest()[:16]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        fresh = folder / f"fresh.{os.getpid()}"
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation"]
        subprocess.run([compiler, *flags, "-Wl,-soname,libnvidia-ml.so.1", "-o", fresh, _SOURCE], check=True)
        os.replace(fresh, library)
    return folder


class FakeGpu:
    """One GPU of the machine."""

    def __init__(self, machine: "FakeNvml", index: int, layout: GpuLayout) -> None:
        self._machine = machine
        self.index = index
        self.layout = layout
        self.uuid = gpu_uuid(index)

    def set(self, **values: int | None) -> None:
        """Values by their names in `Value`, in lower case; None: not supported."""
        for name, value in values.items():
            self.layout.value[Value[name.upper()]] = ABSENT if value is None else value

    def field(self, number: int, value: int | None) -> None:
        """A field by its number."""
        self.layout.field[number] = ABSENT if value is None else value

    def link(self, number: int, *, active: bool | None = None, replays: int | None = None) -> None:
        """Change one NVLink."""
        if active is not None:
            self.layout.link_active[number] = int(active)
        if replays is not None:
            self.layout.link_counter[number][0] = replays

    def connect(self, links: int, *, to: int | None = None, first: int = 0) -> None:
        """Give it that many NVLinks, to an NVSwitch or to the GPU of number `to`."""
        for number in range(first, first + links):
            self.layout.link_active[number] = 1
            self.layout.link_type[number] = 2 if to is None else 0
            self.layout.link_peer[number] = -1 if to is None else to
            for counter in range(5):
                self.layout.link_counter[number][counter] = 0
        self.field(pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT, first + links)

    def fail(self, code: int) -> None:
        """Let every call about it fail with this return code; 0: answer again."""
        self.layout.error = code

    def lose(self) -> None:
        """It has fallen off the bus."""
        self.fail(GPU_IS_LOST)

    def xid(self, number: int, *, recovery_action: int | None = None) -> None:
        """Raise an XID error; the driver may say at once what the GPU needs."""
        if recovery_action is not None:
            self.field(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, recovery_action)
        self.event(pynvml.nvmlEventTypeXidCriticalError, number)

    def event(self, kind: int, data: int = 0) -> None:
        """Raise an event."""
        self._machine.write_event(self.index, kind, data)


class FakeNvml:
    """A machine in a file of `folder`."""

    def __init__(self, folder: Path, *, gpus: int = 8, model: str = "NVIDIA H100 80GB HBM3") -> None:
        self.path = folder / "machine"
        with open(self.path, "w+b") as file:
            file.truncate(ctypes.sizeof(MachineLayout))
            self._map = mmap.mmap(file.fileno(), 0)
        self.layout = MachineLayout.from_buffer(self._map)
        self.layout.layout = ctypes.sizeof(MachineLayout)
        self.layout.driver = b"580.95.05"
        self.layout.count = gpus
        self.gpus = [FakeGpu(self, index, self.layout.gpu[index]) for index in range(gpus)]
        for gpu in self.gpus:
            _make_healthy(gpu, model)

    @property
    def calls(self) -> int:
        """How many calls the library has taken."""
        return int(self.layout.calls)

    def environment(self) -> Mapping[str, str]:
        """For a process of its own: what makes it load the fake and find this machine."""
        return {**os.environ, "FAKE_NVML": str(self.path), "LD_LIBRARY_PATH": str(build())}

    def load(self) -> None:
        """Load the fake into this process, whose bindings then find it under its name."""
        ctypes.CDLL(str(build() / "libnvidia-ml.so.1"), ctypes.RTLD_GLOBAL)
        os.environ["FAKE_NVML"] = str(self.path)

    def unload_driver(self) -> None:
        """Let every call fail because there is no driver."""
        self.layout.error = NOT_LOADED

    def load_driver(self) -> None:
        """It is back."""
        self.layout.error = 0

    def hang(self, function: str) -> None:
        """Let this function not return, from now on and until `release`."""
        self.layout.hangs = function.encode()

    def release(self) -> None:
        """Let what hangs go on."""
        self.layout.hangs = b""

    def lack(self, *functions: str) -> None:
        """Let the driver not know these functions."""
        for place, function in zip(range(NAMES), functions, strict=False):
            self.layout.missing[place].value = function.encode()

    def make_old(self) -> None:
        """Turn it into a driver of some years ago."""
        self.layout.driver = b"525.147.05"
        self.lack(*NEWER_CALLS)
        for gpu in self.gpus:
            gpu.set(event_types=_CLASSIC_EVENTS)
            for number in NEWER_FIELDS:
                gpu.field(number, None)

    def write_event(self, gpu: int, kind: int, data: int) -> None:
        """Raise an event of one GPU."""
        place = self.layout.events[self.layout.events_written % EVENTS]
        place.gpu, place.type, place.data = gpu, kind, data
        self.layout.events_written += 1


def _make_healthy(gpu: FakeGpu, model: str) -> None:
    layout = gpu.layout
    layout.uuid = gpu.uuid.encode()
    layout.name = model.encode()
    layout.serial = f"16500230{gpu.index:05d}".encode()
    layout.bus = f"00000000:{0x10 + 0x10 * gpu.index:02X}:00.0".encode()
    layout.value[:] = [ABSENT] * len(layout.value)
    layout.field[:] = [ABSENT] * len(layout.field)
    layout.link_active[:] = [ABSENT] * len(layout.link_active)
    gpu.set(temperature=45, slowdown=87, shutdown=92, margin=42, throttle=1, utilization=0)
    gpu.set(power_mw=120_000, power_limit_mw=700_000, power_requested_mw=700_000, persistence=1)
    gpu.set(sm_mhz=345, sm_max_mhz=1980, memory_mhz=2619, application_sm_mhz=1980, application_memory_mhz=2619)
    gpu.set(memory_used=0, memory_total=80 << 30)
    gpu.set(ecc_corrected=0, ecc_uncorrected=0, ecc_corrected_aggregate=0, ecc_uncorrected_aggregate=0)
    gpu.set(remapped_correctable=0, remapped_uncorrectable=0, remap_pending=0, remap_failed=0)
    gpu.set(pcie_generation=5, pcie_generation_max=5, pcie_width=16, pcie_width_max=16, pcie_replays=0)
    gpu.set(event_types=_CLASSIC_EVENTS | _NEWER_EVENTS, fabric_state=3, fabric_clique=0)
    gpu.field(pynvml.NVML_FI_DEV_MEMORY_TEMP, 52)
    gpu.field(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0)
    for number in (74, 75, 77, 79, 83, 94, 269, 270, 271):  # energy, replays, time held down
        gpu.field(number, 0)
    gpu.connect(18)
