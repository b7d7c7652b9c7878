"""The fence: the highest round that ever entered a checkpoint directory.

A round raises it when it starts and looks at it again, under the same lock, when it commits. A worker of an
older round that was cut off meanwhile finds a higher number there and may not change the directory any more.
"""

from holdfast.api.errors import Damaged, Fenced
from holdfast.checkpoint.storage import Storage

FILE_NAME = "fence"
_WRITING = "fence.new"
_DIGITS_MAX = 20


def require(storage: Storage, round: int) -> None:
    """Call while holding `storage.exclusive()`. Raises Fenced when a newer round has entered, Damaged when
    nobody can tell.
    """
    highest = _read(storage)
    if highest is not None and highest > round:
        raise Fenced(f"round {highest} has entered {storage.uri}; round {round} may not write there any more")


def enter(storage: Storage, round: int) -> None:
    """Raise the fence to `round`. Call while holding `storage.exclusive()`; raises as `require` does."""
    require(storage, round)
    if _read(storage) == round:
        return
    storage.write(_WRITING, [memoryview(f"{round}\n".encode())])
    storage.rename(_WRITING, FILE_NAME)
    storage.sync()


def _read(storage: Storage) -> int | None:
    try:
        text = storage.read(FILE_NAME, 0, _DIGITS_MAX + 1)
    except FileNotFoundError:
        return None
    digits = text.strip()
    if not digits.isdigit() or len(digits) > _DIGITS_MAX:
        raise Damaged(f"the fence at {storage.uri}/{FILE_NAME} holds no round number: {text!r}")
    return int(digits)
