"""Deleting checkpoints by hand, as carefully as a round does it by itself.

A round that runs deletes what is superfluous after each of its saves. By hand it is done under the same lock and
by the same rules, and three more: what the job left as needed for a rewind stays, whatever is asked for; nothing
goes while a save is being written; and nothing goes before one of those that stay was read whole and found intact.
"""

import secrets
from dataclasses import dataclass, replace

from holdfast.api.errors import Damaged, Unavailable
from holdfast.checkpoint.commit.discovery import committed_at, committed_step, discover, lineage, staged_by
from holdfast.checkpoint.commit.retention import Need, Retention, judge
from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.commit.verification import verify


@dataclass(frozen=True, slots=True)
class Plan:
    """The names that would go, and those that would go as well if the job had not left that it has a `need`."""

    doomed: tuple[str, ...]
    spared: tuple[str, ...]
    need: Need


def plan(storage: Storage, retention: Retention) -> Plan:
    """Raises Damaged when nobody can tell what the job needs, OSError when the storage fails."""
    need = storage.commits.entered().need
    found, unreadable = discover(storage)

    def doomed(asked: Retention) -> tuple[str, ...]:
        return judge(found, unreadable, asked, lambda name: committed_at(storage, name)).doomed

    going = doomed(_minding(retention, need))
    return Plan(going, tuple(name for name in doomed(retention) if name not in going), need)


def prune(storage: Storage, retention: Retention) -> list[str]:
    """Delete what `plan` dooms; the names that went.

    Raises Unavailable while a save is being written, Damaged when none of what would stay is intact or nobody can
    tell what the job needs, Fenced when a round enters meanwhile, OSError when the storage fails.
    """
    number = storage.commits.entered().number
    _refuse_while_saving(storage, number)
    doomed = plan(storage, retention).doomed
    if not doomed:
        return []
    staying = [each.name for each in lineage(discover(storage)[0]) if each.name not in doomed]
    if not any(verify(storage, name).is_intact for name in staying):
        raise Damaged(
            f"nothing was deleted: of what would stay in {storage.uri}, nothing is intact ({', '.join(staying)})"
        )
    before = set(_committed(storage))
    _refuse_while_saving(storage, number)  # Verifying takes a while, and the job may need something else by now.
    needed = _minding(retention, storage.commits.entered().need)
    storage.commits.retire(needed, round=number, token=secrets.token_hex(4))
    return sorted(before - set(_committed(storage)))


def _minding(retention: Retention, need: Need) -> Retention:
    """What is asked for, and what the job needs: what it found unhealthy is healthy for nobody."""
    return replace(retention, also=need, unhealthy_from=need.unhealthy_from)


def _refuse_while_saving(storage: Storage, number: int) -> None:
    """In an object store a save in flight does not show; there it does not mind: nothing of it is ever listed."""
    for name in storage.names():
        staged = staged_by(name)
        if staged is not None and staged[0] >= number:
            raise Unavailable(
                f"a save is being written to {storage.uri}/{name}: wait for it, or delete that folder when the "
                "run that wrote it is dead"
            )


def _committed(storage: Storage) -> list[str]:
    return [name for name in storage.names() if committed_step(name) is not None]
