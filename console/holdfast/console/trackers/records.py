"""What a spool holds of one job: what was seen of its steps, what happened, and how far both are known."""

import msgspec


class Row(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Values of `step`, seen `at` (seconds since 1970) in `round`, which went on from `since` (None: unknown)."""

    step: int
    at: float
    values: dict[str, float]
    round: int
    since: int | None = None


class Note(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Something to be noted beside the curves. `id` is an incident's; `event` is opened, closed or lost.

    `step` is where the job was, None: not known. `body` is the incident as JSON. `is_old`: it was over before
    anybody published this job.
    """

    id: str
    event: str
    at: float
    step: int | None
    title: str
    text: str
    body: bytes = b""
    is_old: bool = False


class Mark(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Ends what was appended at once. All there is of steps up to `heard` is in front of it, and up to `final` no
    step will be trained again by itself; None: of none is that known. `memory` is its writer's own.
    """

    heard: int | None
    final: int | None
    memory: bytes = b""


class Ended(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The job is over: `succeeded`, or failed for this reason."""

    at: float
    succeeded: bool
    reason: str


Record = Row | Note | Mark | Ended
