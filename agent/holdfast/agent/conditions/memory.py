"""What one source has raised, kept in a file of the run directory: a restart of the agent goes on with it.

What held is held again in any boot, as its own rule clears it: a link that is up for a minute after a boot is up.
Without a run directory, or where the file is damaged, nothing is known of what held before. Then the agent's word
that all is clear by the rule ends it.
"""

import logging
import os
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.agent.conditions.book import Held
from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed

_LOG = logging.getLogger(__name__)

_BYTES_MAX: Final = 1 << 20
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
Content = TypeVar("Content", bound=msgspec.Struct)
_AGAIN_S: Final = 60.0  # a file that could not be written is tried again


class Kept(msgspec.Struct, frozen=True):
    """What is in the file. `boot` is the kernel's id of the boot that the times are of."""

    boot: str
    held: tuple[Held, ...] = ()


class ConditionMemory:
    """`path` None: it remembers nothing. `boot` is this boot's id (default: the kernel's)."""

    def __init__(self, path: str | None = None, *, boot: str | None = None) -> None:
        self._path = path
        self._boot = boot_id() if boot is None else boot
        self._kept: Kept | None = None
        try:
            self._kept = None if path is None else read_file(path, Kept)
        except (OSError, Malformed) as error:
            _LOG.warning("conditions of an earlier run are not known: file=%s reason=%r", path, str(error))
        self._again_at = float("-inf")
        self._unkept = False

    @classmethod
    def of(cls, source: str, run_dir: str | None) -> "ConditionMemory":
        """The memory of one source in the agent's run directory, where it has one."""
        return cls(None if run_dir is None else os.path.join(run_dir, f"conditions-{source}.json"))

    @property
    def rebooted(self) -> bool:
        """Whether what is remembered is surely of another boot."""
        kept = self._kept
        return kept is not None and bool(kept.boot and self._boot) and kept.boot != self._boot

    def recall(self, now: float) -> tuple[Held, ...]:
        """What held when the agent before this one ended. The clock of another boot says nothing of its age."""
        if self._kept is None:
            return ()
        same = bool(self._boot) and self._kept.boot == self._boot
        return tuple(each if same and each.since <= now else replace(each, since=now) for each in self._kept.held)

    def keep(self, held: Iterable[Held], now: float) -> None:
        """Remember what holds now. Nothing is written while it is the same as before."""
        if self._path is None or now < self._again_at:
            return
        kept = Kept(self._boot, tuple(held))
        if kept.boot == (self._kept or kept).boot and _parts(kept) == _parts(self._kept):
            return
        try:
            write_whole(self._path, msgspec.json.encode(kept))
            self._kept, self._unkept = kept, False
        except OSError as error:
            self._again_at = now + _AGAIN_S
            if not self._unkept:
                self._unkept = True
                _LOG.warning("conditions not kept: file=%s reason=%s", self._path, error.strerror)


def boot_id(path: str = _BOOT_ID) -> str:
    """This boot's id, "" where the kernel does not tell it."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def read_file(path: str, kind: type[Content]) -> Content | None:
    """What was written, None where there is none. Raises OSError, and Malformed for a damaged file."""
    try:
        with open(path, "rb") as file:
            return decode_json(file.read(_BYTES_MAX), kind)
    except FileNotFoundError:
        return None


def write_whole(path: str, content: bytes) -> None:
    """Replace the file, whole or not at all. Raises OSError."""
    fresh = f"{path}.new"
    with open(fresh, "wb") as file:
        file.write(content)
    os.replace(fresh, path)


def _parts(kept: Kept | None) -> set[tuple[str, str, str, float | None]]:
    return {(each.kind, each.gpu, each.device, each.measure) for each in kept.held} if kept is not None else set()
