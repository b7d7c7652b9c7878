"""What launchers and the watchdog say to each other, over one authenticated WebSocket per launcher.

The launcher speaks `FromLauncher`, first of all `Join`; the watchdog shows it `Shown` states and nothing
else, except `Refused` when it may not join. After a reconnect the launcher sends `Join` again, with the round
it still holds, and repeats what was not yet known to have arrived: every message carries its round, so what
arrives twice or late changes nothing.
"""

from typing import Annotated

import msgspec

from holdfast.api.bounds import Code, Few, Job, Many, Name, Port, Positive, Rank, Seconds, Text, Uri, Whole
from holdfast.api.checkpoint import StoredCheckpoint
from holdfast.api.profile import ProfileTold, ProfileWanted
from holdfast.api.round import Follows, Reentry, Shown, Tier
from holdfast.api.runmanifest import RunManifest
from holdfast.api.scalars import ScalarsLogged
from holdfast.api.selftest import Tested, TestWanted
from holdfast.api.stacks import StacksWanted, StackTold
from holdfast.api.telemetry import RankNonFinite
from holdfast.api.workeroutput import WorkerOutput


class Join(msgspec.Struct, frozen=True, tag=True):
    """A launcher asks to be a member.

    `boot` names this run of the launcher: the same member name with another boot is a new launcher in the same
    slot. `ports` are free ports it keeps reserved for process-group stores. `held_round` is the round its workers
    run now (a reconnect), `shown` the greatest number it was ever shown, 0 for none: what a watchdog has lost of
    its memory shows by it. `transfer_port` is where its transfer server listens, 0 without one. `warm` says
    that workers can be forked without importing torch. `nodes` is the range (least, most) the launcher was
    started with; it becomes the job's when nobody has submitted the job. `tells_stacks`,
    `takes_profiles` and `takes_ledgers`: it understands `StacksWanted`, `ProfileWanted` and `LedgerTold`.
    """

    job: Job
    member: Name
    node: Name
    boot: Name
    address: Name
    local_size: Positive
    ports: Annotated[tuple[Port, ...], Few]
    warm: bool
    held_round: Whole | None = None
    nodes: tuple[Whole, Whole] | None = None
    shown: Whole = 0
    transfer_port: Port = 0
    tells_stacks: bool = False
    takes_profiles: bool = False
    takes_ledgers: bool = False


class Warmed(msgspec.Struct, frozen=True, tag=True):
    """The warm parent is ready: workers now start without importing torch."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The launcher lives. Sent every heartbeat interval."""


class RoundEntered(msgspec.Struct, frozen=True, tag=True):
    """Every local worker of the member runs in `round`. `reentrant` when all of them can re-enter in process.

    `last_step` is the last step any of them had completed in the round before, None when Unknown: what the
    fault cost is counted from it. `reentry` says which rounds its workers can go on to, when they are reentrant,
    and `because` what keeps them from others. Said again when that changes.
    """

    round: Whole
    reentrant: bool
    last_step: Whole | None = None
    reentry: Reentry = Reentry.ANY_WORLD
    because: Text = ""


class GroupReady(msgspec.Struct, frozen=True, tag=True):
    """Every local worker of the member waits at a step boundary, in the replica group of `epoch` that is being
    formed: it can train from the next round on. Said again in each `round` in which it is still being formed.
    """

    round: Whole
    epoch: Whole


class WorkerExited(msgspec.Struct, frozen=True, tag=True):
    """A worker process of `round` ended on its own. `age_s` since the kernel said so.

    Exactly one of `exit_code` and `signal` is set. `error` is the tail a human wants to read.
    `raised` is the Python exception that ended it, in one line, and `place` the innermost line of the user's own
    files that it came through; both are empty when none was seen. `began`: the process had shown a sign of
    training. `own_limit`: the kernel killed it because its pod had reached the memory limit of its own.
    `trace` is equal for exceptions of one class that came through the same lines; empty without one.
    `left`: `Run.enter` was under way in it, and had not returned. `asked_by` is the newest signal that asks a
    process to end and had reached it, or its launcher, shortly before; None: none is known.
    """

    round: Whole
    rank: Rank
    age_s: Seconds
    exit_code: Code | None = None
    signal: Code | None = None
    error: Text = ""
    raised: Text = ""
    place: Text = ""
    began: bool = False
    own_limit: bool = False
    trace: Name = ""
    left: bool = False
    asked_by: Code | None = None

    @property
    def is_end(self) -> bool:
        """Whether training is over for this worker. An exit code of zero alone does not say so: a script that
        saves and leaves when it is told to ends with it as well.
        """
        return self.exit_code == 0 and not self.left and self.asked_by is None


class CollectiveFailed(msgspec.Struct, frozen=True, tag=True):
    """A worker of `round` is alive but its collective failed; it waits for the next round. A symptom.

    `across`: it failed between replica groups, and within none.
    """

    round: Whole
    rank: Rank
    age_s: Seconds
    error: Text = ""
    across: bool = False


class ProcessesSpawned(msgspec.Struct, frozen=True, tag=True):
    """A worker of `round`, of a script that publishes no steps, waits for processes that it started itself with
    `torch.multiprocessing.spawn`: it called that at `place` ("train.py:30 in main") a while ago, for so many.
    """

    round: Whole
    rank: Rank
    processes: Whole
    place: Text = ""


class TrainingBegan(msgspec.Struct, frozen=True, tag=True):
    """A local worker of `round`, of a script that publishes no steps, has shown its first sign of training.

    It has a connection to the round's store (`init_process_group` opens one), or wrote steadily to its output.
    What lies before that, importing above all, says nothing about whether training goes well.
    """

    round: Whole


class WorkersFinished(msgspec.Struct, frozen=True, tag=True):
    """Training is over for all local workers of the member (`WorkerExited.is_end`) in `round`, after `last_step`
    (None: Unknown).

    `nonfinite` is what those of them that know of a value that was not finite said at the end.
    """

    round: Whole
    last_step: Whole | None = None
    nonfinite: Annotated[tuple[RankNonFinite, ...], Many] = ()


class CheckpointCommitted(msgspec.Struct, frozen=True, tag=True):
    """Rank 0 committed a checkpoint of `step`; `uri` is that checkpoint itself, for people to find it.

    `wanted` is the number of the `SaveWanted` it answers, None for one that was due anyway. `stall_s` is how long
    training stood still for it, `took_s` how long it took until it was committed, both of rank 0; None: Unknown.
    """

    round: Whole
    step: Whole
    uri: Uri
    wanted: Whole | None = None
    stall_s: Seconds | None = None
    took_s: Seconds | None = None


class CheckpointsStored(msgspec.Struct, frozen=True, tag=True):
    """What storage holds now of the history that `round` goes on with, as rank 0 sees it.

    Said when the round has restored and after each deletion of old checkpoints, before anything that is committed
    later is told. `checkpoints` are the readable ones, newest first, those found damaged left out: all `count` of
    them, or the newest `checkpoint.TOLD_MAX` less one and the oldest. `uri` is the place they lie in. `saved` is
    the newest step that the round had committed by then, None: none yet; said again after a later commit, it is
    out of date.
    """

    round: Whole
    uri: Uri
    count: Whole
    checkpoints: Annotated[tuple[StoredCheckpoint, ...], Many] = ()
    saved: Whole | None = None


class RunDescribed(msgspec.Struct, frozen=True, tag=True):
    """How rank 0 of `round` was started, as much of it as fits into a frame. Said once a round."""

    round: Whole
    manifest: RunManifest


class Restored(msgspec.Struct, frozen=True, tag=True):
    """A worker restored `step` (None: started afresh) from `tier`.

    `skipped` says which damaged ones were passed over, `healed` what was damaged and taken from a replica instead.
    `follows` is what else of the directive the worker does, or would do. `until` is the last step that the script
    means to make, None where it does not say.
    """

    round: Whole
    rank: Rank
    step: Whole | None
    skipped: Annotated[tuple[Text, ...], Many] = ()
    tier: Tier = Tier.CHECKPOINT
    healed: Annotated[tuple[Text, ...], Many] = ()
    follows: Annotated[tuple[Follows, ...], Many] = ()
    until: Whole | None = None


class Departing(msgspec.Struct, frozen=True, tag=True):
    """The launcher was told to end (SIGTERM) and can stay for `within_s` seconds: move its ranks in good order.

    It leaves once it is shown a desired state in which it has no ranks, or when the time is up.
    """

    reason: Text
    within_s: Seconds


class Leave(msgspec.Struct, frozen=True, tag=True):
    """The launcher stops on purpose (SIGTERM); its closed connection is no fault."""

    reason: Text


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The watchdog does not take this launcher; it exits with the reason."""

    reason: str


class SaveWanted(msgspec.Struct, frozen=True, tag=True):
    """Watchdog to launcher, and from there to the workers: commit one more checkpoint of `round` soon.

    `number` names the request; shown again, it is the same request.
    """

    round: int
    number: int


class Verified(msgspec.Struct, frozen=True, tag=True):
    """Watchdog to the launcher of rank 0, and from there to its workers: what is sound.

    All replicas agreed after `step` (None: never compared). After `unhealthy_from` some rank's loss or gradient
    norm was not finite (None: of no step is that known): no checkpoint of that step or later is to be restored.
    Said when a checkpoint is committed, and when the latter changes. The newest one up to `step` and before
    `unhealthy_from` is what a rewind goes back to.
    """

    round: int
    step: int | None
    unhealthy_from: int | None = None


class LedgerTold(msgspec.Struct, frozen=True, tag=True):
    """Watchdog to the launcher of rank 0, and from there to its workers: what the job has cost by now.

    `report` is a `ledger.LedgerReport` in JSON, for the file `ledger.FILE_NAME` in the next checkpoint. Said when
    one is committed, once a minute at the most.
    """

    round: int
    report: bytes


RoundWord = SaveWanted | Verified | LedgerTold
"""What is said to the workers of a round while it runs. The newest of a kind counts."""

FromLauncher = (
    Join
    | Warmed
    | Beat
    | RoundEntered
    | GroupReady
    | WorkerExited
    | CollectiveFailed
    | TrainingBegan
    | ProcessesSpawned
    | WorkersFinished
    | CheckpointCommitted
    | CheckpointsStored
    | RunDescribed
    | Restored
    | Departing
    | Leave
    | Tested
    | WorkerOutput
    | StackTold
    | ProfileTold
    | ScalarsLogged
)
ToLauncher = Shown | RoundWord | TestWanted | StacksWanted | ProfileWanted | Refused
