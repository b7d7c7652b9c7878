"""What an on-call engineer asks for, as it travels and is journaled. The user-facing object validates into it."""

from enum import StrEnum
from typing import Annotated

import msgspec

from holdfast.api.bounds import Few, Figure, Job, Name, Nodes, Rank, Text, Whole
from holdfast.api.selftest import TestLevel


class InterventionAction(StrEnum):
    EVICT = "Evict"
    RETURN = "Return"
    CHECKPOINT = "Checkpoint"
    REWIND = "Rewind"
    RESIZE = "Resize"
    PAUSE = "Pause"
    RESUME = "Resume"
    SKIP_BATCHES = "SkipBatches"
    RESTART = "Restart"
    TEST = "Test"
    PROFILE = "Profile"


class InterventionState(StrEnum):
    PENDING = "Pending"
    DONE = "Done"
    REFUSED = "Refused"


class InterventionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request. Only the fields of its action are set; `id` makes a repeated request the same request."""

    id: Name
    job: Job
    action: InterventionAction
    reason: Text
    node: Name | None = None
    nodes: Nodes | None = None
    to_step: Whole | None = None
    skip_batches: Whole = 0
    learning_rate_scale: Figure = 1.0
    fresh: bool = False
    level: TestLevel | None = None
    ranks: Annotated[tuple[Rank, ...], Few] = ()
    steps: Whole | None = None


class InterventionOutcome(msgspec.Struct, frozen=True):
    """What became of it."""

    id: str
    state: InterventionState
    outcome: str


class Forecast(msgspec.Struct, frozen=True):
    """What would become of a request if it were made now, and what else would happen, in words.

    `state` is Pending for what is answered only later; nothing was changed by asking.
    """

    state: InterventionState
    outcome: str
    effects: tuple[str, ...] = ()
