"""What can go wrong with checkpoints, under the tree of `holdfast.api.errors`.

HoldfastError
|-- InvalidInput          a uri, an object or a state that cannot be checkpointed; names field, value and fix
|-- Unavailable           the storage does not work now
|-- Fenced                a newer round has entered the directory; this one may not write to it any more
|-- Damaged               stored bytes are not what was written
|   `-- NothingToRestore  checkpoints are there, or were asked for, and none can be used
|-- NotEquivalent         an intact checkpoint fits, yet the model computes something else than when it was saved
|-- Unfit                 an intact checkpoint does not hold what the model or optimizer asks for
`-- SaveFailed            one save did not commit; training goes on, the next save may succeed
    `-- SavingStopped     several saves in a row did not commit; a human has to look
"""

from holdfast.api.errors import Damaged, HoldfastError


class NothingToRestore(Damaged):
    """A restore was directed, or checkpoints are there, and none that the round may use is intact. Who wants to
    start over says so: `Restore(tier=Tier.NONE)`.
    """


class NotEquivalent(HoldfastError):
    """A restored model computes another loss than when it was saved; names step, rank and both losses."""


class Unfit(HoldfastError):
    """The checkpoint is intact, yet it is not one of this model, optimizer or extra state."""


class SaveFailed(HoldfastError):
    """One save did not commit. What was committed before is untouched."""


class SavingStopped(SaveFailed):
    """Too many saves in a row did not commit."""
