"""Which GPU is in which PCI slot: the kernel's log knows slots, NVML and the watchdog know UUIDs.

The driver tells it in /proc/driver/nvidia/gpus/ADDRESS/information, one folder a GPU. Reading that may wait for a
GPU that is sick, so that it is done on a thread of its own.
Source: https://us.download.nvidia.com/XFree86/Linux-x86_64/570.86.16/README/procinterface.html
"""

import contextlib
import os
import re
import threading
import time
from typing import Final

# Domain, bus and device in hexadecimal. The oldest drivers write no domain, NVML eight digits, some a function.
PCI_PATTERN: Final = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2,4}:[0-9a-fA-F]{2}(?:\.[0-7])?"

_WHOLE: Final = re.compile(rf"(?:PCI:)?({PCI_PATTERN})")
ROOT: Final = "/proc/driver/nvidia/gpus"
_UUID: Final = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4,12}){4})\s*$", re.MULTILINE)
_READ_BYTES_MAX: Final = 4096
_GPUS_MAX: Final = 256
# A healthy driver answers in milliseconds; what it has not told by then is learnt while the agent runs.
_WAIT_S: Final = 1.0
_AGAIN_S: Final = 30.0


def slot_of(text: str) -> str | None:
    """The slot in one spelling, without the function: "0000:3b:00" for "00000000:3B:00.0". None: no address."""
    match = _WHOLE.fullmatch(text)
    if match is None:
        return None
    *domain, bus, device = match[1].partition(".")[0].split(":")
    return f"{int(domain[0], 16) if domain else 0:04x}:{int(bus, 16):02x}:{device.lower()}"


def unnamed(slot: str) -> str:
    """The name of a GPU whose UUID nobody knows."""
    return f"PCI:{slot}"


class GpuNames:
    """From a slot, as `slot_of` spells it, to the UUID of the GPU in it."""

    def __init__(self, root: str = ROOT) -> None:
        self._root = root
        self._uuids: dict[str, str] = {}
        self._reader: threading.Thread | None = None
        self._read_at = float("-inf")
        self._read()
        if self._reader is not None:
            self._reader.join(_WAIT_S)

    def __call__(self, slot: str) -> str:
        """The UUID; "" when it is Unknown, in which case the driver is asked again before long."""
        uuid = self._uuids.get(slot, "")
        if not uuid:
            self._read()
        return uuid

    def learn(self, slot: str, uuid: str) -> None:
        """Somebody else told which GPU it is."""
        if slot in self._uuids or len(self._uuids) < _GPUS_MAX:
            self._uuids[slot] = uuid

    def _read(self) -> None:
        busy = self._reader is not None and self._reader.is_alive()
        now = time.monotonic()
        if busy or now - self._read_at < _AGAIN_S:
            return
        self._read_at = now
        self._reader = threading.Thread(target=self._look, name="gpu-names", daemon=True)
        self._reader.start()

    def _look(self) -> None:
        try:
            names = os.listdir(self._root)
        except OSError:
            return
        for name in names[:_GPUS_MAX]:
            slot, path = slot_of(name), os.path.join(self._root, name, "information")
            if slot is None:
                continue
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                # The driver writes question marks for an UUID that it does not know.
                if (match := _UUID.search(file.read(_READ_BYTES_MAX))) is not None:
                    self.learn(slot, match[1])
