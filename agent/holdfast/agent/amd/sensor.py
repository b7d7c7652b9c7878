"""The sensor of AMD's GPUs.

AMD's driver tells no errors as events here; what matters of them is in its counters and in the kernel's log.
"""

import logging
import time
from typing import Final

from holdfast.agent.amd.driver import AmdDriver
from holdfast.agent.amd.gpu import AmdSession
from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.gpusensor import GpuSensor, on_pci_bus

_LOG = logging.getLogger(__name__)

NAME: Final = "amd-smi"
_VENDOR: Final = "0x1002"
# The PCI classes of GPUs: displays, and processing accelerators such as Instinct.
# Source: https://pci-ids.ucw.cz/read/PD/
_CLASSES: Final = ("0x03", "0x12")


class AmdSmiSensor(GpuSensor):
    """Every GPU that AMD's driver knows."""

    def __init__(self, *, memory: ConditionMemory | None = None) -> None:
        self._driver = AmdDriver(time.monotonic)
        self._silent_since: dict[str, float] = {}
        super().__init__(NAME, self._driver.running, known=lambda: True, memory=memory)

    def _poll(self) -> None:
        session = AmdSession(self._driver, self._silent_since)
        _LOG.info("driver answers: gpus=%d unidentified=%d", len(session.gpus), len(session.unidentified))
        try:
            self._sweep(lambda now: self._snapshot.sweep(session, now))
        finally:
            session.close()


def has_amd_gpus(root: str = "/") -> bool:
    """Whether this machine has AMD GPUs, asked of the kernel: one is on the PCI bus below `root`."""
    return on_pci_bus(_VENDOR, _CLASSES, root)
