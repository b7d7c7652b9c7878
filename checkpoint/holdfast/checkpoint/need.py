"""What a rewind may need of the checkpoints. The job that writes them leaves it for whoever deletes by hand.

In a directory it is a file beside the fence, in an object store it stands in the journal.
"""

from typing import Annotated

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, Malformed
from holdfast.checkpoint.files import Tree

FILE_NAME = "need.json"
_WRITING = "need.json.new"
_BYTES_MAX = 1 << 16
# What is compared after a step is told with the next sample of a node, which may leave some out.
_COMPARISONS_BACK = 2

_Steps = Annotated[int, msgspec.Meta(ge=0)]


class Need(msgspec.Struct, frozen=True):
    """`compared_every` is after how many steps replicas are compared, 0: never. `verified` is the last step after
    which they are known to have held the same, None: not known of any. `unhealthy_from` is the first step after
    which a loss or gradient norm was not finite, None: none is known. `keep` is how many of the newest
    the job keeps, None: it has not said; by hand that is asked for anew.
    """

    compared_every: _Steps = 0
    verified: _Steps | None = None
    unhealthy_from: _Steps | None = None
    keep: _Steps | None = None

    @property
    def reaches_back(self) -> int:
        """How many steps before a settled one a checkpoint must be that surely is verified; 0: none is needed."""
        return _COMPARISONS_BACK * self.compared_every


def read(storage: Tree) -> Need:
    """What was left last; nothing is needed where nothing was. Raises Damaged when nobody can tell."""
    try:
        found = storage.read(FILE_NAME, 0, _BYTES_MAX)
    except FileNotFoundError:
        return Need()
    try:
        return decode_json(found, Need)
    except Malformed as error:
        raise Damaged(
            f"what a rewind needs cannot be read from {storage.uri}/{FILE_NAME}: {error}; the job's next save "
            "writes it anew, or delete it when no job will rewind there"
        ) from error


def leave(storage: Tree, need: Need) -> None:
    """Replace what was left, if it is another. Call while holding `storage.exclusive()`."""
    try:
        if read(storage) == need:
            return
    except Damaged:
        pass  # It is replaced.
    storage.write(_WRITING, [memoryview(msgspec.json.encode(need) + b"\n")])
    storage.rename(_WRITING, FILE_NAME)
    storage.sync()
