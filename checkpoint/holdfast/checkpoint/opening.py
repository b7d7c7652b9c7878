"""What rank 0 finds when its round opens a checkpoint directory, told to every rank."""

import secrets
from enum import StrEnum

import msgspec

from holdfast.api.checkpoint import StoredCheckpoint, is_refused, restore_order
from holdfast.api.errors import Damaged, Fenced, Unavailable
from holdfast.api.round import Restore, Tier
from holdfast.checkpoint.council import Council
from holdfast.checkpoint.discovery import Found, discover, lineage
from holdfast.checkpoint.naming import committed_step
from holdfast.checkpoint.storage import Storage


class Opening(msgspec.Struct, frozen=True, tag=True):
    """Candidates newest first; `unreadable` are passed over without a look. `token` marks this process's work,
    `number` is what the round is called in the directory. `newest` is the (round, step) of the first candidate,
    with rounds numbered as this life of the job does; those of an earlier life come out below 1. `last_resort` are
    the candidates, last of all, that were not finite when they were saved, as (name, step). `line` is what the
    storage holds of the history that goes on, newest first; rank 0 alone has it.
    """

    token: str
    number: int = 0
    candidates: tuple[str, ...] = ()
    newest: tuple[int, int] | None = None
    unreadable: tuple[str, ...] = ()
    last_resort: tuple[tuple[str, int], ...] = ()
    line: tuple[StoredCheckpoint, ...] = ()


class _Kind(StrEnum):
    FENCED = "Fenced"
    DAMAGED = "Damaged"
    UNAVAILABLE = "Unavailable"


class _Refusal(msgspec.Struct, frozen=True, tag=True):
    """Rank 0 may not, or cannot, use the directory."""

    kind: _Kind
    reason: str


_ERRORS = {_Kind.FENCED: Fenced, _Kind.DAMAGED: Damaged, _Kind.UNAVAILABLE: Unavailable}


_DECODER = msgspec.msgpack.Decoder(Opening | _Refusal)


def open_together(storage: Storage, council: Council, *, round: int, restore: Restore) -> Opening:
    """Enter the directory and list what `restore` allows. Collective.

    Raises, on every rank alike, Fenced when a newer round has entered, Damaged when nobody can tell which rounds
    have, and Unavailable when the storage fails.
    """
    said = _open(storage, round, restore) if council.rank == 0 else None
    brief = msgspec.structs.replace(said, line=()) if isinstance(said, Opening) else said
    heard: Opening | _Refusal = _DECODER.decode(council.broadcast(msgspec.msgpack.encode(brief)))
    if isinstance(heard, _Refusal):
        raise _ERRORS[heard.kind](heard.reason)
    return said if isinstance(said, Opening) else heard


def _open(storage: Storage, round: int, restore: Restore) -> Opening | _Refusal:
    token = secrets.token_hex(4)
    try:
        # Without a watchdog every start is a life of its own.
        owner = restore.owner or token
        number = storage.commits.enter(owner=owner, round=round)
        if restore.tier is Tier.NONE:
            return Opening(token=token, number=number)
        found, unreadable = discover(storage)
    except Fenced as error:
        return _Refusal(kind=_Kind.FENCED, reason=str(error))
    except Damaged as error:
        return _Refusal(kind=_Kind.DAMAGED, reason=str(error))
    except OSError as error:
        return _Refusal(kind=_Kind.UNAVAILABLE, reason=f"{storage.uri} cannot be opened: {error}")
    line = lineage(found, limit=restore.step)
    order = restore_order(line, restore.unhealthy_from)
    if restore.otherwise is not None:
        further = [each for each in lineage(found, limit=restore.otherwise) if each not in line]
        order += restore_order(further, restore.unhealthy_from)
        line = sorted((*further, *line), key=lambda each: each.step, reverse=True)
    earlier = number - round
    passed = [
        f"{each.name}: {each.reason}"
        for each in unreadable
        if restore.step is None or (committed_step(each.name) or 0) <= restore.step
    ]
    refused = [each for each in line if is_refused(each.step, restore.unhealthy_from)]
    passed += [
        f"{each.name}: not healthy, as nothing is from step {restore.unhealthy_from} on" for each in refused
    ]
    return Opening(
        token=token,
        number=number,
        candidates=tuple(each.name for each in order),
        newest=(order[0].manifest.round - earlier, order[0].step) if order else None,
        unreadable=tuple(passed),
        last_resort=tuple((each.name, each.step) for each in order if each.healthy is False),
        line=tuple(stored_as(each, earlier) for each in line),
    )


def stored_as(found: Found, earlier: int) -> StoredCheckpoint:
    """As it is told. `earlier` is by how much rounds are numbered higher in the storage than in this life."""
    return StoredCheckpoint(found.step, found.manifest.round - earlier, found.name, found.healthy)
