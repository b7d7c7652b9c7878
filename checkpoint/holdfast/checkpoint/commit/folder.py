"""The moment a checkpoint becomes one, and the tidying around it. Everything here runs under the fence's lock."""

import errno
import logging
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.commit import discovery, fence
from holdfast.checkpoint.commit.retention import Need, Retention, judged, leave_need, read_need
from holdfast.checkpoint.commit.storage import Entered
from holdfast.checkpoint.format.files import Tree

_LOG = logging.getLogger(__name__)

# What a file system says that cannot do it, today or tomorrow. Source: man 2 rename; FUSE answers ENOSYS.
_NEVER = (errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL, errno.EISDIR)


class FolderCommits:
    """The `Commits` of a file system: a folder gets its name by being renamed."""

    def __init__(self, storage: Tree) -> None:
        self._storage = storage

    def enter(self, *, owner: str, round: int) -> int:
        """The clearing comes first, so that what the dead left on a full disk cannot keep the living out. Raises
        InvalidInput for a file system that cannot rename a folder.
        """
        storage = self._storage
        storage.make()
        with storage.exclusive():
            last = fence.read(storage)
            mark = fence.raised(last, owner=owner, round=round, uri=storage.uri)
            _delete(storage, _leftovers(storage, mark.number))
            _require_renames(storage)
            if mark != last:
                fence.write(storage, mark)
        return mark.number

    def entered(self) -> Entered:
        mark = fence.read(self._storage)
        return Entered(mark.number if mark else 0, read_need(self._storage))

    def folder(self, step: int, *, round: int, token: str, attempt: int) -> str:
        """The same for every attempt: what was committed does not have this name any more."""
        return discovery.staged_name(step, round=round, token=token)

    def publish(self, folder: str, *, step: int, round: int) -> str:
        """A checkpoint of that step may be there already: of a round whose history this one gave up, or one that a
        restore passed over as damaged. Either way the newer one is right, so it takes the place. The older is set
        aside first and deleted last; a death between the two renames leaves it, and `enter` puts it back. An older
        one that cannot be deleted is no failure: the newer stands, and `retire` clears the older away.
        """
        storage, final = self._storage, discovery.committed_name(step)
        # Fresh each time: what an earlier attempt has set aside and not deleted is not in the way.
        aside = discovery.set_aside_name(final, secrets.token_hex(4))
        with storage.exclusive():
            fence.require(storage, round)
            replaces = final in storage.names()
            if replaces:
                storage.rename(final, aside)
            try:
                storage.rename(folder, final)
            except OSError:
                if replaces:
                    storage.rename(aside, final)
                raise
            storage.sync()
            if replaces:
                try:
                    storage.remove(aside)
                except OSError as error:
                    _LOG.warning("replaced checkpoint not deleted folder=%s reason=%s", aside, error)
        return final

    def retire(
        self, retention: Retention, *, round: int, token: str, need: Need | None = None
    ) -> tuple[discovery.Found, ...]:
        """Also deletes whatever could not be deleted before. For while `token` saves nothing. Readers see each
        checkpoint whole or not at all, also after a loss of power.
        """
        storage = self._storage
        with storage.exclusive():
            fence.require(storage, round)
            doomed = _leftovers(storage, round, token)
            verdict = judged(storage, retention)
            for name in verdict.doomed:
                storage.rename(name, discovery.doomed_name(name, token))
                doomed.append(discovery.doomed_name(name, token))
            try:
                _delete(storage, doomed)
            finally:
                if need is not None:
                    leave_need(storage, need)  # Last: a full disk may have had no room for it before.
        return verdict.line


def _require_renames(storage: Tree) -> None:
    """Rename an empty folder. Its names are of what is cleared away, should this be the end."""
    first = discovery.committed_name(0)
    before, after = (discovery.doomed_name(first, secrets.token_hex(4)) for _ in range(2))
    storage.make(before)
    name = before
    try:
        storage.rename(before, after)
        name = after
    except OSError as error:
        if error.errno not in _NEVER:
            raise
        said = f"{storage.uri}, where rename() of a folder fails with {errno.errorcode[error.errno]}"
        fix = (
            f"a checkpoint becomes one by a rename ({os.strerror(error.errno)}): name a folder of a disk, of NFS "
            "or of Lustre, or a mounted bucket by itself, as s3://bucket/prefix"
        )
        raise InvalidInput(Problem(field="checkpoint.uri", value=said, fix=fix)) from error
    finally:
        with suppress(OSError):
            storage.remove(name)


def _leftovers(storage: Tree, round: int, token: str = "") -> list[str]:
    """Put back what was set aside and not replaced, and name all else that is no checkpoint. Of what is staged,
    only that of rounds before `round` and of `token` itself is left over.
    """
    names = storage.names()
    found: list[str] = []
    for name in tuple(names):
        final, staged = discovery.set_aside_from(name), discovery.staged_by(name)
        is_dead = staged is not None and (staged[0] < round or staged == (round, token))
        if final is not None and final not in names:
            storage.rename(name, final)
            names.append(final)
        elif final is not None or discovery.is_doomed(name) or is_dead:
            found.append(name)
    return found


def _delete(storage: Tree, names: Sequence[str]) -> None:
    """Raises the first OSError when all that can be deleted is."""
    if names:
        storage.sync()  # Or a loss of power could bring back a name whose files are gone.
    errors: list[OSError] = []
    for name in names:
        try:
            storage.remove(name)
        except OSError as error:
            errors.append(error)
    for failure in errors:
        raise failure
