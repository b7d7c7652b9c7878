"""PCI addresses, which every source spells in its own way."""

import re
from typing import Final

# Domain, bus and device in hexadecimal. The oldest drivers write no domain, NVML eight digits, some a function.
PCI_PATTERN: Final = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2,4}:[0-9a-fA-F]{2}(?:\.[0-7])?"

_WHOLE: Final = re.compile(rf"(?:PCI:)?({PCI_PATTERN})")


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
