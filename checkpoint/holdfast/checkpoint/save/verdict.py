"""Rank 0's last word on a save, heard alike by every rank."""

import errno
from collections.abc import Callable

import msgspec

from holdfast.api.errors import Fenced
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.errors import SaveFailed


class _Verdict(msgspec.Struct, frozen=True):
    """A name, or why not."""

    name: str = ""
    failed: str = ""
    fenced: str = ""


def decide(group: SaveGroup, storage: Storage, work: Callable[[], str]) -> str:
    """What `work` returns on rank 0, on every rank. Collective; what it raises is raised on every rank alike, as
    SaveFailed or Fenced.
    """
    verdict = None
    if group.rank == 0:
        try:
            verdict = _Verdict(name=work())
        except Fenced as error:
            verdict = _Verdict(fenced=str(error))
        except Exception as error:  # Whatever it is, the other ranks wait to be told.
            verdict = _Verdict(failed=explained(error, storage))
    said = group.broadcast(msgspec.msgpack.encode(verdict))
    heard = msgspec.msgpack.decode(said, type=_Verdict)
    if heard.fenced:
        raise Fenced(heard.fenced)
    if heard.failed:
        raise SaveFailed(heard.failed)
    return heard.name


def explained(error: Exception, storage: Storage) -> str:
    """Why a save to `storage` failed, in words."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        try:
            free = f"{storage.free_bytes()} bytes free"
        except OSError:
            free = "free space unknown"
        return f"the disk is full at {storage.uri} ({free})"
    if isinstance(error, FileNotFoundError):
        return f"{error.filename} is missing; is {storage.uri} shared by all ranks?"
    return str(error) if isinstance(error, SaveFailed | Fenced) else f"{type(error).__name__}: {error}"
