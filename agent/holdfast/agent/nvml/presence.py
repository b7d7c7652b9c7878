"""Whether this machine has NVIDIA GPUs, asked of the kernel and not of the driver."""

import os
from typing import Final

_VENDOR: Final = "0x10de"
_DISPLAY: Final = "0x03"  # the PCI class of GPUs, with or without an output for a screen


def has_nvidia_gpus(root: str = "/") -> bool:
    """True when one is on the PCI bus, or the driver has made its device files, below `root`."""
    if os.path.exists(os.path.join(root, "dev/nvidiactl")):
        return True
    devices = os.path.join(root, "sys/bus/pci/devices")
    try:
        names = os.listdir(devices)
    except OSError:
        return False
    return any(_is_gpu(os.path.join(devices, name)) for name in names)


def _is_gpu(device: str) -> bool:
    return _line(device, "vendor") == _VENDOR and _line(device, "class").startswith(_DISPLAY)


def _line(device: str, name: str) -> str:
    try:
        with open(os.path.join(device, name), encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""
