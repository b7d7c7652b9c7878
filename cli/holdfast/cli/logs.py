"""What is asked of workers' logs, and what a watchdog keeps of those whose pods are gone.

Launchers send the end of a process's output when it ended, and when they leave in good order. What a node takes
along that vanishes without a word nobody has.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.workeroutput import KeptOutput
from holdfast.cli.output import remark

if TYPE_CHECKING:
    from holdfast.cli.watchdogclient import WatchdogClient

# As kubectl does for a selector: of several ranks only so much each, of one everything.
TAIL_OF_SEVERAL: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """`rank` and `node` None: every one. `tail` is in lines of each rank, None for all of one rank.

    `is_previous`: the process before the last restart. `since_s` is how far back. `follows`: with the run, or the
    person, else what is there now.
    """

    rank: int | None = None
    node: str | None = None
    is_previous: bool = False
    tail: int | None = None
    since_s: float | None = None
    follows: bool = False

    def lines_of_each(self, sources: int) -> int | None:
        """How many lines of each of so many sources, None for all."""
        return TAIL_OF_SEVERAL if self.tail is None and sources > 1 else self.tail


@dataclass(frozen=True, slots=True)
class LogLine:
    """`prefix` says whose it is where there are several, else it is empty."""

    text: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.prefix}{self.text}"


def prefix_for(rank: int, sources: int) -> str:
    """What stands before the lines of a rank."""
    return f"[rank{rank}] " if sources > 1 else ""


def unknown_rank(rank: int, ranks: Sequence[int]) -> InvalidInput:
    """No worker of that rank."""
    known = ", ".join(map(str, sorted(set(ranks)))) or "none"
    return InvalidInput(Problem("--rank", rank, f"there are logs of ranks {known}"))


def unknown_node(node: str, nodes: Iterable[str]) -> InvalidInput:
    """No worker on that node."""
    return InvalidInput(
        Problem("--node", node, f"there are logs of nodes {', '.join(sorted(set(nodes))) or 'none'}")
    )


def no_previous(request: LogRequest) -> Unavailable:
    """Nothing was started again, or it is no longer kept."""
    who = "any rank" if request.rank is None else f"rank {request.rank}"
    return Unavailable(f"no worker process before the newest one is known of {who}")


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a rank's newest process from elsewhere.

    `member` had the rank last, None when that is not known. `is_gone`: its pod is not there any more. `round`: the
    process began in it, None when that is not known.
    """

    member: str | None = None
    is_gone: bool = True
    round: int | None = None


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """Of the job of `client`. `now` is the wall clock, in seconds since 1970."""

    client: "WatchdogClient"
    now: float

    def lines(self, request: LogRequest, rank: int, known: Known, tail: int | None) -> list[str]:
        """The last `tail` lines kept of the process that is meant, None for all; stderr says what they are.

        Empty when nothing is kept of it, which stderr says as well.
        """
        kept = self._recent(self.client.outputs(rank=rank), request)
        found = meant(kept, known, is_previous=request.is_previous)
        if found is not None:
            return _told(found, tail)
        # The newest incident that it brought about keeps its last words, and nothing where it did not fail.
        failures = [each for each in self.client.incidents() if each.error and each.culprit.rank == rank]
        if failures:
            at = clock(failures[-1].detected_at)
            remark(f"kept of the worker of rank {rank} that failed at {at} ({failures[-1].id}): its last lines")
            return list(deque(failures[-1].error.splitlines(), tail))
        which = "the process before the newest one" if request.is_previous else "the newest process"
        remark(f"nothing is kept of what {which} of rank {rank} wrote")
        if kept and not request.is_previous:
            remark("what an earlier process of it wrote is kept: --previous shows it")
        elif known.is_gone:
            remark("a node that vanishes without a word leaves only what its launcher had sent before")
        return []

    def lines_of_gone(self, request: LogRequest) -> Iterator[LogLine]:
        """Of a rank or a node that the newest round does not have. Nothing when nothing is kept of it."""
        if request.follows:
            return
        kept = self.client.outputs(rank=request.rank, node=request.node)
        of_rank: dict[int, list[KeptOutput]] = {}
        for each in self._recent(kept, request):
            if request.rank in (None, each.rank) and request.node in (None, each.node):
                of_rank.setdefault(each.rank, []).append(each)
        place = 1 if request.is_previous else 0
        found = [group[place] for _, group in sorted(of_rank.items()) if len(group) > place]
        for each in found:
            for line in _told(each, request.lines_of_each(len(found))):
                yield LogLine(line, prefix_for(each.rank, len(found)))

    def _recent(self, kept: Sequence[KeptOutput], request: LogRequest) -> list[KeptOutput]:
        since = 0.0 if request.since_s is None else self.now - request.since_s
        return [each for each in kept if each.ended_at >= since]


def meant(kept: Sequence[KeptOutput], known: Known, *, is_previous: bool) -> KeptOutput | None:
    """The process that is meant among those kept of a rank, which are newest first; None when it is not kept."""
    newest = kept[0] if kept else None
    # As far as can be told, whether what was kept last is of the rank's newest process.
    is_newest = newest is not None and (
        newest.round == known.round if known.round is not None else known.member in (None, newest.member)
    )
    if not is_previous:
        return newest if is_newest else None
    if known.round is not None:
        return next((each for each in kept if each.round != known.round), None)
    earlier = kept[1:] if is_newest and known.is_gone else kept
    return next(iter(earlier), None)


def heading(kept: KeptOutput) -> str:
    """Which process it is, how it ended, and how much of its output this is."""
    who = f"rank {kept.rank} in {kept.member} on {kept.node}, pid {kept.pid}"
    began = f"started {clock(kept.started_at)} in round {kept.round}"
    how = f"with {kept.ended_with}"
    ended = f"ended {clock(kept.ended_at)} {how if kept.ended_with else 'with its launcher, or later'}"
    size = len(kept.tail.encode())
    part = f"the last {size} bytes, {kept.omitted_bytes} before them are not kept" if kept.omitted_bytes else "all"
    return f"{who}, {began}, {ended}: the watchdog keeps {part} of what it wrote"


def _told(kept: KeptOutput, tail: int | None) -> list[str]:
    remark(heading(kept))
    return list(deque(kept.tail.splitlines(), tail))


def clock(at: float) -> str:
    """Local time of day."""
    return f"{datetime.fromtimestamp(at):%H:%M:%S}"
