"""The kernel's ring buffer, as its device gives it to a reader: a record a read, the oldest ones overwritten."""

import errno
from pathlib import Path

from holdfast.agent.kernel.log import KernelLog
from holdfast.agent.kernel.slots import GpuNames
from holdfast.agent.kernel.source import KernelDevice

UUID = "GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b"
OTHER_UUID = "GPU-00000000-1111-2222-3333-444444444444"
BOOT = "7be0675b-8571-4e8f-9288-40ffcaf5b440"


def gpu_tree(root: Path, **gpus: str) -> str:
    """What the driver shows below /proc/driver/nvidia/gpus: UUIDs by bus, bus_3b=..."""
    for bus, uuid in gpus.items():
        folder = root / "gpus" / f"0000:{bus.removeprefix('bus_')}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 321\nGPU UUID: \t {uuid}\n"
            f"Video BIOS: \t 96.00.61.00.01\nBus Type: \t PCIe\nBus Location: \t {folder.name}\n"
        )
    return str(root / "gpus")


class Ring:
    """Holds the newest `size` records. Readers each have their own place, as with the device."""

    def __init__(self, size: int = 1000) -> None:
        self._size = size
        self._records: list[bytes] = []
        self._written = 0

    def say(self, text: str, at: float, facility: int = 0) -> None:
        line = text.encode().replace(b"\\", b"\\x5c").replace(b"\n", b"\\x0a")
        self._records.append(b"%d,%d,%d,-;%s\n" % (facility << 3 | 4, self._written, round(at * 1e6), line))
        self._written += 1
        del self._records[: -self._size]

    def device(self) -> KernelDevice:
        """The device, opened anew: it begins with the oldest record there is."""
        place = self._written - len(self._records)

        def read(descriptor: int, size: int) -> bytes:
            nonlocal place
            oldest = self._written - len(self._records)
            if place < oldest:
                place = oldest
                raise OSError(errno.EPIPE, "Broken pipe")
            if place == self._written:
                raise BlockingIOError
            place += 1
            return self._records[place - 1 - oldest]

        return KernelDevice("/dev/null", read=read)

    def sensor(self, tmp_path: Path, *, boot: str = BOOT, gpus: str = "/nowhere") -> KernelLog:
        """An agent's start: the sensor goes on from the bookmark in `tmp_path`."""
        return KernelLog(
            self.device(), names=GpuNames(gpus), state_file=str(tmp_path / "kernel-log.json"), boot=boot
        )
