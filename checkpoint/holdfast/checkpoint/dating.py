"""When checkpoints were committed, by the clock of the storage."""

from typing import Protocol, runtime_checkable

from holdfast.checkpoint.files import Files
from holdfast.checkpoint.naming import manifest_path


@runtime_checkable
class Dated(Protocol):
    """What `Files` may offer besides: when something was stored."""

    def modified_at(self, name: str) -> float:
        """Unix time in seconds. Raises OSError when the storage cannot tell."""


def committed_at(files: Files, name: str) -> float | None:
    """Unix time in seconds, None where nobody can tell. The manifest is the last file before the commit."""
    if not isinstance(files, Dated):
        return None
    try:
        return files.modified_at(manifest_path(name))
    except OSError:
        return None
