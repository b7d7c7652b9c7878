"""Which checkpoints stay once a new one is committed, and why each of them does.

What a rewind may need of them, the job that writes them leaves for whoever deletes by hand.
In a directory it is a file beside the fence, in an object store it stands in the journal.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import msgspec

from holdfast.api.checkpoint import Health, health_of
from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, Malformed
from holdfast.checkpoint.commit.discovery import Found, Unreadable, committed_at, committed_step, discover, lineage
from holdfast.checkpoint.format.files import Files, Tree

NEED_FILE = "need.json"
_NEED_WRITING = "need.json.new"
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


def read_need(storage: Tree) -> Need:
    """What was left last; nothing is needed where nothing was. Raises Damaged when nobody can tell."""
    try:
        found = storage.read(NEED_FILE, 0, _BYTES_MAX)
    except FileNotFoundError:
        return Need()
    try:
        return decode_json(found, Need)
    except Malformed as error:
        raise Damaged(
            f"what a rewind needs cannot be read from {storage.uri}/{NEED_FILE}: {error}; the job's next save "
            "writes it anew, or delete it when no job will rewind there"
        ) from error


def leave_need(storage: Tree, need: Need) -> None:
    """Replace what was left, if it is another. Call while holding `storage.exclusive()`."""
    try:
        if read_need(storage) == need:
            return
    except Damaged:
        pass  # It is replaced.
    storage.write(_NEED_WRITING, [memoryview(msgspec.json.encode(need) + b"\n")])
    storage.rename(_NEED_WRITING, NEED_FILE)
    storage.sync()


TOLD_WITHIN_S = 30.0
"""By then the watchdog has decided on what replicas computed: nodes are sampled once a second, and it may be
between two leaders. While it is away for longer, what it last said is verified stays.
"""

Dates = Callable[[str], float | None]
"""When the checkpoint of that name was committed, in seconds on any clock; None where nobody can tell."""


class Why(StrEnum):
    """Why a checkpoint stays."""

    NEWEST = "Newest"  # one of the newest that `keep` asks for
    HEALTHY = "NewestHealthy"
    UNTOLD = "NewestUnknown"  # none is known to be healthy, and this may be
    VERIFIED = "NewestVerified"
    UNCOMPARED = "UntilCompared"  # a comparison of replicas may still find all newer ones wrong
    EVIDENCE = "Evidence"  # unreadable, and not yet older than `keep` readable ones


@dataclass(frozen=True, slots=True)
class Writer:
    """The round that saves and deletes, by its number in the storage, the step it had restored (None: it started
    afresh), and a token that no other process has. What is kept is of the history it goes on with, also before its
    first commit.
    """

    round: int
    parent: int | None
    token: str = ""


@dataclass(frozen=True, slots=True)
class Retention:
    """How much stays: the newest `keep`, and what a rewind may need, as a `Need` says it. `also` is what somebody
    else says of that. `writer` None: whoever deletes by hand.
    """

    keep: int
    compared_every: int = 0
    verified: int | None = None
    also: Need | None = None
    unhealthy_from: int | None = None
    writer: Writer | None = None

    @property
    def need(self) -> Need:
        """What a rewind may need, without what somebody else says."""
        return Need(self.compared_every, self.verified, self.unhealthy_from, self.keep)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (self.need,) if self.also is None else (self.need, self.also)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of each checkpoint: `kept` by name with every reason, `doomed` in order. `line` is what stays
    of the history that goes on, newest first.
    """

    kept: Mapping[str, tuple[Why, ...]]
    doomed: tuple[str, ...]
    line: tuple[Found, ...]


def judged(files: Files, retention: Retention) -> Verdict:
    """What `judge` says of the storage as it is. Raises OSError when the storage fails."""
    return judge(*discover(files), retention, lambda name: committed_at(files, name))


def judge(found: Sequence[Found], unreadable: Sequence[Unreadable], retention: Retention, dates: Dates) -> Verdict:
    """What stays of the newest line of descent, as `retention` says.

    What belongs to a history that was given up goes, since training went another way. Only readable ones count as
    kept; an unreadable one stays, as evidence, until `keep` readable ones are newer. Nothing goes while nothing is
    found.
    """
    line = descent(found, retention.writer)
    whys: dict[str, list[Why]] = {}
    for why, one in _reasons(line, retention, dates):
        if why not in whys.setdefault(one.name, []):
            whys[one.name].append(why)
    newest = line[: retention.keep]
    doubtful = [each.name for each in unreadable]
    if len(newest) == retention.keep:
        doubtful = [name for name in doubtful if (committed_step(name) or 0) >= newest[-1].step]
    kept = {name: tuple(said) for name, said in whys.items()}
    kept |= dict.fromkeys(doubtful, (Why.EVIDENCE,))
    there = [each.name for each in found] + [each.name for each in unreadable]
    doomed = sorted(name for name in there if name not in kept) if line else ()
    return Verdict(kept, tuple(doomed), tuple(each for each in line if each.name in kept))


def descent(found: Sequence[Found], writer: Writer | None) -> list[Found]:
    """The line that goes on, newest first: that of the newest commit, or, before the writer's first one, of what
    it had restored.
    """
    if writer is None or any(each.manifest.round >= writer.round for each in found):
        return lineage(found)
    return [] if writer.parent is None else lineage(found, limit=writer.parent)


def _reasons(line: Sequence[Found], retention: Retention, dates: Dates) -> Iterator[tuple[Why, Found]]:
    for each in line[: retention.keep]:
        yield Why.NEWEST, each
    for need in retention.needs:
        health = {each.name: health_of(each, need.unhealthy_from) for each in line}
        for best, why in ((Health.HEALTHY, Why.HEALTHY), (Health.UNKNOWN, Why.UNTOLD)):
            alike = [each for each in line if health[each.name] is best]
            if alike:  # Where nobody can tell of any, the newest that may be.
                yield why, alike[0]
                break
        usable = [each for each in line if health[each.name] is not Health.UNHEALTHY]
        verified = [each for each in usable if need.verified is not None and each.step <= need.verified]
        for each in verified[:1]:
            yield Why.VERIFIED, each
        for each in _old_enough(usable, need, dates, newest=line[0]) if usable else ():
            yield Why.UNCOMPARED, each


def _old_enough(line: Sequence[Found], need: Need, dates: Dates, newest: Found) -> list[Found]:
    """The newest that is old enough to be verified; newer ones may hold what is found wrong only later."""
    if not need.reaches_back:
        return []
    # Settled is what was committed so long before the newest that all comparisons up to it have been decided on.
    # Steps alone have to tell where the storage keeps no dates; what it merely cannot tell now is not settled.
    now = dates(newest.name)
    settled = (
        each.step
        for each in line
        if now is None or ((then := dates(each.name)) is not None and now - then >= TOLD_WITHIN_S)
    )
    oldest_doubt = next(settled, 0) - need.reaches_back
    stones: dict[int, Found] = {}  # one for each interval between comparisons, so that one grows old enough
    for each in line:
        if each.step <= oldest_doubt:
            return [*stones.values(), each]
        stones.setdefault(-(-each.step // need.compared_every), each)
    return [*stones.values()]
