"""The fence: who entered a checkpoint directory last, as a number that only grows.

A round raises it when it starts and looks at it again, under the same lock, when it commits. A worker of an
older round that was cut off meanwhile finds a higher number there and may not change the directory any more.

Rounds are numbered anew in each life of a job, the directory may outlive many. So an owner whose name is not in
the fence takes the directory over: its round r gets the number `base + r`, above everything before. An owner that
was displaced stays out: what comes of it later is a straggler. The file holds "number base owner displaced ...".
"""

import msgspec

from holdfast.api.errors import Damaged, Fenced
from holdfast.checkpoint.format.files import Tree

FILE_NAME = "fence"
_WRITING = "fence.new"
_BYTES_MAX = 1 << 16
_DIGITS_MAX = 20
_NOBODY = "-"
# Stragglers are workers of the last lives, not of ancient ones.
_DISPLACED_KEPT = 32


class Mark(msgspec.Struct, frozen=True):
    """What a fence says."""

    number: int
    base: int
    owner: str
    displaced: tuple[str, ...] = ()


def check(mark: Mark | None, number: int, *, uri: str) -> None:
    """Raises Fenced when `mark`, the fence of the directory at `uri`, is of a newer round than `number`."""
    if mark is None or mark.number <= number:
        return
    newer = f"round {mark.number - mark.base} has entered {uri}"
    if number <= mark.base:
        raise Fenced(
            f"{newer} for another life of the job, {mark.owner}; an earlier one may not write there any more"
        )
    raise Fenced(f"{newer}; round {number - mark.base} may not write there any more")


def raised(last: Mark | None, *, owner: str, round: int, uri: str) -> Mark:
    """The fence once `owner`'s `round` has entered where `last` was it. Raises Fenced when it may not."""
    owner = owner or _NOBODY
    if last is None:
        return Mark(round, 0, owner)
    if owner in last.displaced:
        raise Fenced(f"{last.owner} has taken {uri} over from {owner}, which may not write there any more")
    if last.owner == owner:
        mark = Mark(last.base + round, last.base, owner, last.displaced)
    else:
        base = last.number + (1 if round == 0 else 0)
        mark = Mark(base + round, base, owner, (last.owner, *last.displaced)[:_DISPLACED_KEPT])
    check(last, mark.number, uri=uri)
    return mark


def require(storage: Tree, number: int) -> None:
    """Call while holding `storage.exclusive()`. Raises Fenced when a newer round has entered, Damaged when
    nobody can tell.
    """
    check(read(storage), number, uri=storage.uri)


def write(storage: Tree, mark: Mark) -> None:
    """Call while holding `storage.exclusive()`."""
    words = (str(mark.number), str(mark.base), mark.owner, *mark.displaced)
    storage.write(_WRITING, [memoryview(f"{' '.join(words)}\n".encode())])
    storage.rename(_WRITING, FILE_NAME)
    storage.sync()


def read(storage: Tree) -> Mark | None:
    """What was written last, None when nothing was. Raises Damaged when nobody can tell."""
    try:
        text = storage.read(FILE_NAME, 0, _BYTES_MAX)
    except FileNotFoundError:
        return None
    number, base, owner, *displaced = [*text.decode(errors="replace").split(), "", "", ""]
    if not all(digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX for digits in (number, base)):
        raise Damaged(f"the fence at {storage.uri}/{FILE_NAME} holds no round number: {text!r}")
    return Mark(int(number), int(base), owner, tuple(name for name in displaced if name))
