"""Workers' logs of a job in a cluster: the logs of its pods, told apart by rank and by process.

The launcher copies what its workers write to its own output, each line with the rank in front, and says when a
worker process begins. Of a pod that is gone the API server has no log; what is left is what the watchdog kept, see
`logs`.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.agent.launch.logs import BEGINS
from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.status import RankStatus
from holdfast.cli.cluster.kubeapi import GET_POD_LOG, Gone, KubeApi
from holdfast.cli.logs import (
    Ending,
    KeptLogs,
    Known,
    LogLine,
    LogRequest,
    Which,
    prefix_for,
    unknown_but_kept,
    unknown_node,
    unknown_rank,
)
from holdfast.cli.output import remark

TRAINER: Final = "trainer"
ROUND: Final = re.compile(r", round (\d+)$")
OF_RANK: Final = re.compile(r"\[rank(\d+)\]: (.*)", re.DOTALL)
Ranks = Sequence[RankStatus]


@dataclass(frozen=True, slots=True)
class PodLogs:
    """The logs of the pods of one namespace. `container` is the launcher's, None where a pod has only one."""

    api: KubeApi
    namespace: str
    container: str | None

    def lines(self, pod: str, request: LogRequest, ranks: int) -> Iterator[str]:
        """The log of a pod of so many ranks, as far back as is asked for. Raises Gone, Unavailable, Forbidden."""
        query = {} if self.container is None else {"container": self.container}
        if request.since_s is not None:
            query["sinceSeconds"] = str(max(1, int(request.since_s)))
        if request.ending is Ending.FOLLOW:
            query["follow"] = "true"
            if request.tail is not None:
                query["tailLines"] = str(request.tail * ranks)
        return self.api.lines(f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log", GET_POD_LOG, query=query)


def lines_of(logs: PodLogs, ranks: Ranks, request: LogRequest, kept: KeptLogs) -> Iterator[LogLine]:
    """The lines asked for: of pods that are there from their logs, else what is `kept`. `ranks` are the newest.

    Raises InvalidInput, Unavailable, Forbidden.
    """
    try:
        chosen = choose(ranks, request)
    except InvalidInput as unknown:
        yield from unknown_but_kept(kept, request, unknown)
        return
    pods = {each.member: [rank.rank for rank in ranks if rank.member == each.member] for each in chosen}
    wanted, several = {each.rank for each in chosen}, len(chosen)
    if request.ending is Ending.FOLLOW:
        if len(pods) > 1:
            raise InvalidInput(Problem("--follow", "several pods", "name one with --rank or --node"))
        ((pod, there),) = pods.items()
        for rank, text in _of_ranks(logs.lines(pod, request, len(there)), wanted):
            yield LogLine(text, prefix_for(rank, several))
        return
    missing = 0
    for pod, there in pods.items():
        try:
            read: dict[int, _Worker] | None = told_apart(
                logs.lines(pod, request, len(there)), wanted, request.lines_of_each(several)
            )
        except Gone:
            remark(f"the pod {pod} is gone, and its log with it")
            read = None
        for rank in sorted(wanted.intersection(there)):
            worker = _Worker() if read is None else read.get(rank, _Worker())
            told: Iterable[str] | None = worker.of(request.which)
            if told is None:
                known = Known(pod, read is None, worker.round)
                told = kept.lines(request, rank, known, request.lines_of_each(several))
                missing += not told
            yield from (LogLine(text, prefix_for(rank, several)) for text in told)
    if missing == several:
        raise Unavailable("nothing of what was asked for is kept; a cluster's own log collection may have it")


def choose(ranks: Ranks, request: LogRequest) -> list[RankStatus]:
    """The ranks that are meant. Raises InvalidInput."""
    if request.rank is not None and request.rank not in {each.rank for each in ranks}:
        raise unknown_rank(request.rank, [each.rank for each in ranks])
    if request.node is not None and request.node not in {each.node for each in ranks}:
        raise unknown_node(request.node, (each.node for each in ranks))
    return [each for each in ranks if request.rank in (None, each.rank) and request.node in (None, each.node)]


@dataclass(slots=True)
class _Worker:
    """What the processes of one rank wrote, one after the other; only the newest two are kept.

    None: no process of the rank has begun in this log. `round` is the one the newest began in, where the log says.
    """

    newest: deque[str] | None = None
    previous: deque[str] | None = None
    kept: int | None = field(default=None, repr=False)
    round: int | None = None

    def begin(self, says: str = "") -> None:
        self.newest, self.previous = deque(maxlen=self.kept), self.newest
        found = ROUND.search(says)
        self.round = int(found[1]) if found else None

    def add(self, text: str) -> None:
        if self.newest is None:  # the log begins later than the process
            self.begin()
        assert self.newest is not None
        self.newest.append(text)

    def of(self, which: Which) -> deque[str] | None:
        return self.newest if which is Which.NEWEST else self.previous


def told_apart(lines: Iterable[str], wanted: Iterable[int], kept: int | None) -> dict[int, _Worker]:
    """What each rank's newest two processes wrote, at most the last `kept` lines of each."""
    workers = {rank: _Worker(kept=kept) for rank in wanted}
    for rank, text in _of_ranks(lines, workers):
        if text.startswith(BEGINS):
            workers[rank].begin(text)
        else:
            workers[rank].add(text)
    return workers


def _of_ranks(lines: Iterable[str], wanted: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Rank and text of the lines that workers of those ranks wrote; the launcher's own are left out."""
    ranks = frozenset(wanted)
    for line in lines:
        if (matched := OF_RANK.fullmatch(line)) is not None and (rank := int(matched[1])) in ranks:
            yield rank, matched[2]


def launcher_container(spec: dict[str, Any]) -> str | None:
    """Which container of a TrainingJob's pods runs the launcher, as the operator chooses it; None when unknown."""
    template = (spec.get("template") or {}).get("spec") or {}
    names = [str(each.get("name", "")) for each in template.get("containers") or ()]
    return TRAINER if TRAINER in names else next(iter(names), None)
