"""Deleting checkpoints by hand, as carefully as a round does it by itself.

A round that runs deletes what is superfluous after each of its saves. By hand it is done under the same lock and
by the same rules, and two more: nothing goes while a save is being written, and nothing goes before one of those
that stay was read whole and found intact.
"""

import secrets

from holdfast.api.errors import Damaged, Unavailable
from holdfast.checkpoint.discovery import discover, lineage
from holdfast.checkpoint.naming import committed_step, staged_by
from holdfast.checkpoint.retention import Retention, superfluous
from holdfast.checkpoint.storage import Files, Storage
from holdfast.checkpoint.verification import verify


def plan(files: Files, retention: Retention) -> list[str]:
    """The names that would go. Raises OSError when the storage fails."""
    return superfluous(files, retention)


def prune(storage: Storage, retention: Retention) -> list[str]:
    """Delete what `plan` names; the names that went.

    Raises Unavailable while a save is being written, Damaged when none of what would stay is intact, Fenced when
    a round enters meanwhile, OSError when the storage fails.
    """
    number = storage.commits.current()
    _refuse_while_saving(storage, number)
    if not plan(storage, retention):
        return []
    _require_an_intact_one(storage, retention)
    before = set(_committed(storage))
    _refuse_while_saving(storage, number)  # Verifying takes a while.
    storage.commits.retire(retention, round=number, token=secrets.token_hex(4))
    return sorted(before - set(_committed(storage)))


def _refuse_while_saving(storage: Storage, number: int) -> None:
    """In an object store a save in flight does not show; there it does not mind: nothing of it is ever listed."""
    for name in storage.names():
        staged = staged_by(name)
        if staged is not None and staged[0] >= number:
            raise Unavailable(
                f"a save is being written to {storage.uri}/{name}: wait for it, or delete that folder when the "
                "run that wrote it is dead"
            )


def _require_an_intact_one(storage: Storage, retention: Retention) -> None:
    doomed = plan(storage, retention)
    found, _ = discover(storage)
    staying = [each.name for each in lineage(found) if each.name not in doomed]
    if not any(verify(storage, name).is_intact for name in staying):
        raise Damaged(
            f"nothing was deleted: of what would stay in {storage.uri}, nothing is intact ({', '.join(staying)})"
        )


def _committed(storage: Storage) -> list[str]:
    return [name for name in storage.names() if committed_step(name) is not None]
