"""A watchdog's part among its replicas, and how a standby says that it is one."""

from enum import StrEnum
from typing import Final

STANDING_HEADER: Final = "X-Holdfast-Standing"
STANDBY_STATUS: Final = 503


class Standing(StrEnum):
    """A watchdog's part among its replicas."""

    STARTING = "starting"  # it has not asked for the lock yet
    STANDBY = "standby"  # it takes over as soon as the lock is free
    LEADING = "leading"
