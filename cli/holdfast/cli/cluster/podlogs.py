"""Workers' logs of a job in a cluster: the logs of its pods, told apart by rank and by process.

The launcher copies what its workers write to its own output, each line with the rank in front, and says when a
worker process begins. Of a pod that is gone the API server has no log; what is left is what the watchdog kept, see
`logs`.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.agent.launch.logs import BEGINS
from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.status import RankStatus
from holdfast.cli.cluster.kubeapi import GET_POD_LOG, Gone, KubeApi
from holdfast.cli.logs import (
    KeptLogs,
    Known,
    LogLine,
    LogRequest,
    prefix_for,
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
        if request.follows:
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
        gone = kept.lines_of_gone(request)  # of a rank or a node that is not in the newest round
        if (first := next(gone, None)) is None:
            raise unknown
        yield first
        yield from gone
        return
    pods = {each.member: [rank.rank for rank in ranks if rank.member == each.member] for each in chosen}
    wanted, several = {each.rank for each in chosen}, len(chosen)
    if request.follows:
        if len(pods) > 1:
            raise InvalidInput(Problem("--follow", "several pods", "name one with --rank or --node"))
        ((pod, there),) = pods.items()
        for rank, text in _of_ranks(logs.lines(pod, request, len(there)), wanted):
            yield LogLine(text, prefix_for(rank, several))
        return
    missing, tail = 0, request.lines_of_each(several)
    place = -2 if request.is_previous else -1
    for pod, there in pods.items():
        is_gone = False
        read: Mapping[int, Sequence[_Process]] = {}
        try:
            read = told_apart(logs.lines(pod, request, len(there)), wanted, tail)
        except Gone:
            remark(f"the pod {pod} is gone, and its log with it")
            is_gone = True
        for rank in sorted(wanted.intersection(there)):
            processes = read.get(rank, ())
            if len(processes) >= -place:
                told: Iterable[str] = processes[place].lines
            else:
                known = Known(pod, is_gone, processes[-1].round if processes else None)
                told = kept.lines(request, rank, known, tail)
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


@dataclass(frozen=True, slots=True)
class _Process:
    """What one process of a rank wrote, and the round it began in where the log says."""

    lines: deque[str]
    round: int | None = None


def told_apart(lines: Iterable[str], wanted: Iterable[int], kept: int | None) -> dict[int, deque[_Process]]:
    """What each rank's newest two processes wrote, the newest last, at most the last `kept` lines of each."""
    processes: dict[int, deque[_Process]] = {rank: deque(maxlen=2) for rank in wanted}
    for rank, text in _of_ranks(lines, processes):
        begins = text.startswith(BEGINS)
        if begins or not processes[rank]:  # the log may begin later than the process
            found = ROUND.search(text) if begins else None
            processes[rank].append(_Process(deque(maxlen=kept), int(found[1]) if found else None))
        if not begins:
            processes[rank][-1].lines.append(text)
    return processes


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
