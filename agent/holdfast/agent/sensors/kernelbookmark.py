"""How far the kernel's log was read, and what held then: kept in a file, so that a restart goes on from there."""

import os
from typing import Final

import msgspec

from holdfast.agent.sensors.kernelsource import Place
from holdfast.agent.sensors.standing import Held
from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed

FILE_NAME: Final = "kernel-log.json"
_BYTES_MAX: Final = 1 << 20
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class Bookmark(msgspec.Struct, frozen=True):
    """`boot` is the kernel's id of the boot that positions and times are of.

    `read_at` is when the position was reached (CLOCK_MONOTONIC, seconds): what lies behind it was said later.
    `whole`: everything that the kernel said in this boot up to the position was read.
    """

    boot: str
    position: int
    file: int = 0
    held: tuple[Held, ...] = ()
    read_at: float | None = None
    whole: bool = False

    @property
    def place(self) -> Place:
        return Place(self.position, self.file)


def boot_id(path: str = _BOOT_ID) -> str:
    """This boot's id, "" where the kernel does not tell it."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def read_bookmark(path: str) -> Bookmark | None:
    """None when there is none, or it is damaged: then reading starts as if for the first time."""
    try:
        with open(path, "rb") as file:
            return decode_json(file.read(_BYTES_MAX), Bookmark)
    except (OSError, Malformed):
        return None


def write_bookmark(path: str, bookmark: Bookmark) -> None:
    """Replace the file, whole or not at all. Raises OSError."""
    fresh = f"{path}.new"
    with open(fresh, "wb") as file:
        file.write(msgspec.json.encode(bookmark))
    os.replace(fresh, path)
