"""An AMD machine for machines without one: a scripted libamd_smi.so for the real bindings to load.

    machine = FakeAmdSmi(tmp_path)          # four healthy GPUs, idle at 45 degrees
    machine.load()                          # in this process, before the bindings are imported
    machine.gpus[3].set(ecc_uncorrected=1)
    machine.gpus[3].lose()

What is scripted holds for the next call.
"""

import ctypes
import hashlib
import importlib.util
import mmap
import os
import re
import shutil
import subprocess
import tempfile
from enum import IntEnum
from functools import cache
from pathlib import Path

GPUS_MAX = 8
LINKS = 8
VALUES = 32
ABSENT = -(2**63)
NO_FILES = 2  # not supported: what the library says of files that are not there
INTERRUPTED = 11
IO_ERROR = 12
NOT_FOUND = 31
BUSY = 30
NOT_LOADED = 34
_SOURCE = Path(__file__).parent / "libamd_smi.c"
Value = IntEnum(
    "Value",
    "TEMPERATURE CRITICAL EMERGENCY MEMORY_TEMPERATURE POWER_W POWER_CAP_UW UTILIZATION MEMORY_USED_MB "
    "MEMORY_TOTAL_MB ECC_CORRECTED ECC_UNCORRECTED ECC_DEFERRED PCIE_WIDTH PCIE_WIDTH_MAX PCIE_SPEED "
    "PCIE_SPEED_MAX PCIE_REPLAYS PROCHOT SOCKET_THERMAL HBM_THERMAL VR_THERMAL POWER_VIOLATION PAGES_PENDING "
    "PAGES_UNRESERVABLE CLOCK_MHZ",
    start=0,
)


class GpuLayout(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 64),
        ("name", ctypes.c_char * 64),
        ("error", ctypes.c_int64),
        ("value", ctypes.c_int64 * VALUES),
        ("link", ctypes.c_int64 * LINKS),
        ("links", ctypes.c_int64),
    )


class MachineLayout(ctypes.Structure):
    _fields_ = (
        ("layout", ctypes.c_int64),
        ("error", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("hangs", ctypes.c_char * 80),
        ("calls", ctypes.c_int64),
        ("gpu", GpuLayout * GPUS_MAX),
    )


@cache
def build() -> Path:
    """A folder like ROCm's, with lib/libamd_smi.so in it, compiled once for each text. Raises without a compiler.

    The bindings look up every function of the library when they are imported, so it has all that they name.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("The fake AMD SMI needs a C compiler: install the package build-essential.")
    found = importlib.util.find_spec("amdsmi")
    if found is None or found.origin is None:
        raise RuntimeError("The fake AMD SMI needs the bindings: pip install holdfast[amd].")
    wanted = set(re.findall(r"_libraries\['libamd_smi.so'\]\.(\w+)", _wrapper(found.origin)))
    written = _SOURCE.read_text()
    lacking = sorted(name for name in wanted if f"int {name}(" not in written)
    source = written + "".join(f"int {name}(void) {{ return NOT_SUPPORTED; }}\n" for name in lacking)
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"fake-amdsmi-{os.getuid()}-{digest}"
    (folder / "lib").mkdir(mode=0o700, parents=True, exist_ok=True)
    library = folder / "lib" / "libamd_smi.so"
    if not library.exists():
        fresh, text = folder / f"fresh.{os.getpid()}.so", folder / f"fresh.{os.getpid()}.c"
        text.write_text(source)
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation"]
        subprocess.run([compiler, *flags, "-o", fresh, text], check=True)
        os.replace(fresh, library)
    return folder


def _wrapper(origin: str) -> str:
    return (Path(origin).parent / "amdsmi_wrapper.py").read_text()


class FakeAmdGpu:
    """One GPU of the machine."""

    def __init__(self, index: int, layout: GpuLayout) -> None:
        self.index = index
        self.layout = layout
        self.uuid = f"{index:02x}ff74a1-0000-1000-80e9-1cb6ed5c4d6f"
        layout.uuid = self.uuid.encode()
        layout.name = b"AMD Instinct MI300X OAM"
        layout.value[:] = [0] * VALUES
        self.set(temperature=45, critical=100, emergency=105, memory_temperature=41, power_w=140)
        self.set(power_cap_uw=750_000_000, memory_total_mb=196_592, clock_mhz=132)
        self.set(pcie_width=16, pcie_width_max=16, pcie_speed=32_000, pcie_speed_max=32)
        layout.links = LINKS
        layout.link[:] = [*[1] * (LINKS - 1), 2]

    def set(self, **values: int | None) -> None:
        """Values by their names in `Value`, in lower case; None: not supported."""
        for name, value in values.items():
            self.layout.value[Value[name.upper()]] = ABSENT if value is None else value

    def link(self, number: int, *, up: bool) -> None:
        """Change one XGMI link."""
        self.layout.link[number] = int(up)

    def fail(self, code: int) -> None:
        """Let every call about it fail with this status; 0: answer again."""
        self.layout.error = code

    def lose(self) -> None:
        """It has fallen off the bus."""
        self.fail(NOT_FOUND)


class FakeAmdSmi:
    """A machine in a file of `folder`."""

    def __init__(self, folder: Path, *, gpus: int = 4) -> None:
        self.path = folder / "amd-machine"
        with open(self.path, "w+b") as file:
            file.truncate(ctypes.sizeof(MachineLayout))
            self._map = mmap.mmap(file.fileno(), 0)
        self.layout = MachineLayout.from_buffer(self._map)
        self.layout.layout = ctypes.sizeof(MachineLayout)
        self.layout.count = gpus
        self.gpus = [FakeAmdGpu(index, self.layout.gpu[index]) for index in range(gpus)]

    def load(self) -> None:
        """Let the bindings of this process find the fake, and the fake this machine."""
        os.environ["ROCM_PATH"] = str(build())
        os.environ["FAKE_AMDSMI"] = str(self.path)

    def unload_driver(self) -> None:
        """Let every call fail because there is no driver."""
        self.layout.error = NOT_LOADED

    def hang(self, function: str) -> None:
        """Let this function not return, from now on and until `release`."""
        self.layout.hangs = function.encode()

    def release(self) -> None:
        """Let what hangs go on."""
        self.layout.hangs = b""
