"""Files and folders that are there whole or not at all, and never in the place of another."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.storage.local import sync_folder


@contextmanager
def fresh(target: Path) -> Iterator[Path]:
    """A path beside `target`, which becomes it when the block ends well and is deleted when it does not.

    A file is to be made durable within the block; its name is on return. Raises InvalidInput when `target` exists,
    before and after the block.
    """
    _refuse(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    try:
        yield unfinished
        if unfinished.is_dir():
            _refuse(target)
            os.rename(unfinished, target)
        else:
            _link(unfinished, target)
        sync_folder(target.parent)
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        unfinished.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """A new file, durable but for its name. Raises OSError."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _link(unfinished: Path, target: Path) -> None:
    try:
        os.link(unfinished, target)
    except FileExistsError:
        _refuse(target)


def _refuse(target: Path) -> None:
    if target.exists():
        fix = "it exists and is not overwritten: name another, or delete it first"
        raise InvalidInput(Problem(field="destination", value=str(target), fix=fix))
