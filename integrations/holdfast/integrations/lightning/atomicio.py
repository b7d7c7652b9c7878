"""Files of Lightning that are whole or not there: those of ModelCheckpoint, beside Holdfast's own."""

import os
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO

from holdfast.checkpoint.storage.local import sync_folder


class AtomicCheckpointIO(_WrappingCheckpointIO):
    """Writes through another `CheckpointIO` under another name, has it on the disk, and renames it then.

    For paths of a file system; of all else the other one sees to it.
    """

    def __init__(self, checkpoint_io: CheckpointIO | None = None) -> None:
        super().__init__(checkpoint_io)

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """As `CheckpointIO.save_checkpoint`. Raises what the other raises, and OSError; what was at `path` before
        is there then.
        """
        final = Path(path)
        if "://" in str(path) or self.checkpoint_io is None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        partial = final.with_name(f".{final.name}.partial")
        try:
            super().save_checkpoint(checkpoint, partial, storage_options)
            if not partial.is_file():
                raise OSError(f"{type(self.checkpoint_io).__name__} wrote no file {partial}")
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(partial, final)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_folder(final.parent)
