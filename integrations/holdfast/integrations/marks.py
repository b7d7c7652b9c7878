"""Which of a framework's checkpoints are complete: those that carry a mark.

A framework writes a checkpoint as a folder of files, by several ranks. A process that is killed meanwhile leaves a
folder that looks like one. So a mark is written into the folder, last of all, once every rank has said that it is
done: it names the files and their sizes. A folder without a mark, or whose files are not those of its mark, is not
complete. The mark is taken away before the folder is written again, and when training goes back behind it.
"""

import contextlib
import os
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.api.errors import Damaged

MARK_NAME: Final = "holdfast.json"
_UNFINISHED: Final = "holdfast.json.unfinished"  # there from before the first file is written until the mark is
_OURS: Final = (MARK_NAME, _UNFINISHED)


class Mark(msgspec.Struct, frozen=True):
    """What is known of a complete checkpoint: the state after `step`, saved by `world_size` ranks.

    `owner` is the life of the job that saved it, as in `Restore`; empty without a watchdog. `healthy` is whether
    every loss and gradient norm of its round was finite until then, None: nobody could say. `files` are their
    sizes in bytes, by their place in the folder. `place` is where in its data a loop was that does not save that
    itself, `spikes` what a SpikeGuard had learned.
    """

    step: int
    world_size: int
    owner: str = ""
    healthy: bool | None = None
    files: dict[str, int] = {}
    place: dict[str, Any] | None = None
    spikes: dict[str, Any] | None = None


class Marked(msgspec.Struct, frozen=True):
    """A complete checkpoint: its folder's name in the directory of checkpoints, and its mark."""

    name: str
    mark: Mark

    @property
    def step(self) -> int:
        return self.mark.step

    @property
    def healthy(self) -> bool | None:
        return self.mark.healthy


class Listing(msgspec.Struct, frozen=True):
    """What a directory of checkpoints holds: the complete ones, newest first; why others are not complete; and the
    steps of folders of which nothing is known, since whoever wrote them knew no marks.
    """

    complete: tuple[Marked, ...] = ()
    incomplete: tuple[str, ...] = ()
    unknown: tuple[int, ...] = ()


_DECODER = msgspec.json.Decoder(Mark)


def begin_writing(folder: Path) -> None:
    """`folder` is about to be written, or to be written anew: it is not complete until it is marked."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _UNFINISHED).touch()
    (folder / MARK_NAME).unlink(missing_ok=True)


def write_mark(folder: Path, mark: Mark) -> None:
    """`folder` is complete: its files are made durable, then it is marked. Raises OSError."""
    sizes: dict[str, int] = {}
    for file in _files(folder):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            sizes[str(file.relative_to(folder))] = os.fstat(opened.fileno()).st_size
    unfinished = folder / _UNFINISHED
    with unfinished.open("wb") as opened:
        opened.write(msgspec.json.encode(msgspec.structs.replace(mark, files=sizes)))
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.rename(folder / MARK_NAME)
    for directory in (folder, folder.parent):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def give_up(folder: Path) -> None:
    """What `folder` holds is of a history that does not go on. Its files stay."""
    (folder / MARK_NAME).rename(folder / _UNFINISHED)


def read_mark(folder: Path) -> Mark:
    """The mark of a complete checkpoint. Raises Damaged, which says what is missing."""
    try:
        mark = _DECODER.decode((folder / MARK_NAME).read_bytes())
    except FileNotFoundError:
        raise Damaged(f"{folder}: its writing was cut short, or it was given up") from None
    except (OSError, msgspec.DecodeError) as error:
        raise Damaged(f"{folder}: its {MARK_NAME} cannot be read: {error}") from error
    if not mark.files:
        raise Damaged(f"{folder}: its {MARK_NAME} names no files")
    for name, size in mark.files.items():
        with contextlib.suppress(OSError):
            if (folder / name).stat().st_size == size:
                continue
        raise Damaged(f"{folder}: {name} is not there with its {size} bytes")
    return mark


def listing(directory: Path, prefix: str) -> Listing:
    """The folders of `directory` whose names are `prefix` and a step. Nothing, where there is no directory."""
    complete: list[Marked] = []
    incomplete: list[str] = []
    unknown: list[int] = []
    for folder in sorted(directory.glob(f"{prefix}*")):
        step = folder.name.removeprefix(prefix)
        if not (step.isdecimal() and folder.is_dir()):
            continue
        if not any((folder / name).exists() for name in _OURS):
            unknown.append(int(step))
            continue
        try:
            marked = Marked(folder.name, read_mark(folder))
            if folder.name != f"{prefix}{marked.step}":
                raise Damaged(f"{folder}: its {MARK_NAME} is of step {marked.step}: a copy, or renamed")
            complete.append(marked)
        except Damaged as error:
            incomplete.append(str(error))
    newest_first = sorted(complete, key=lambda each: each.step, reverse=True)
    return Listing(tuple(newest_first), tuple(incomplete), tuple(sorted(unknown, reverse=True)))


def _files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file() and each.name not in _OURS)
