"""What rank 0 finds when its round opens a checkpoint directory, told to every rank."""

import secrets

import msgspec

from holdfast.api.checkpoint import StoredCheckpoint, is_refused, restore_order
from holdfast.api.errors import Damaged, Fenced, InvalidInput, Problem, Unavailable
from holdfast.api.round import Restore, Tier
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.commit.discovery import Found, committed_step, discover, lineage
from holdfast.checkpoint.commit.storage import Storage


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


class _Refusal(msgspec.Struct, frozen=True, tag=True):
    """Rank 0 may not, or cannot, use the directory: the name of the error, and why. Of one that is none for
    checkpoints what is wrong, and what to write.
    """

    error: str
    reason: str = ""
    problems: tuple[Problem, ...] = ()


_ERRORS = {each.__name__: each for each in (Fenced, Damaged, Unavailable)}
_DECODER = msgspec.msgpack.Decoder(Opening | _Refusal)


def open_together(
    storage: Storage, group: SaveGroup, *, round: int, restore: Restore, enters: bool = True
) -> Opening:
    """Enter the directory and list what `restore` allows. Collective. Where others save, it is only looked at, and
    its `number` there is not known.

    Raises, on every rank alike, Fenced when a newer round has entered, Damaged when nobody can tell which rounds
    have, Unavailable when the storage fails, and InvalidInput when it is none for checkpoints.
    """
    said: Opening | _Refusal | None = None
    if group.rank == 0:
        try:
            said = _open(storage, round, restore, enters=enters)
        except (Fenced, Damaged) as error:
            said = _Refusal(type(error).__name__, str(error))
        except InvalidInput as error:
            said = _Refusal(InvalidInput.__name__, problems=error.problems)
        except OSError as error:
            said = _Refusal(Unavailable.__name__, f"{storage.uri} cannot be opened: {error}")
    brief = msgspec.structs.replace(said, line=()) if isinstance(said, Opening) else said
    heard: Opening | _Refusal = _DECODER.decode(group.broadcast(msgspec.msgpack.encode(brief)))
    if isinstance(heard, _Refusal) and heard.problems:
        raise InvalidInput(*heard.problems)
    if isinstance(heard, _Refusal):
        raise _ERRORS[heard.error](heard.reason)
    return said if isinstance(said, Opening) else heard


def _open(storage: Storage, round: int, restore: Restore, *, enters: bool) -> Opening:
    token = secrets.token_hex(4)
    # Without a watchdog every start is a life of its own.
    number = storage.commits.enter(owner=restore.owner or token, round=round) if enters else round
    if restore.tier is Tier.NONE:
        return Opening(token=token, number=number)
    found, unreadable = discover(storage)
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
    passed += [
        f"{each.name}: not healthy, as nothing is from step {restore.unhealthy_from} on"
        for each in line
        if is_refused(each.step, restore.unhealthy_from)
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
