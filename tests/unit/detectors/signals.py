"""Builders of what detectors see. Two nodes of two ranks unless said otherwise: n0 has ranks 0-1, n1 ranks 2-3."""

from holdfast.api.membership import CollectiveFailed, WorkerExited
from holdfast.api.policy import Policy
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Endpoint, Entry, MemberRanks, Restore, Round
from holdfast.api.telemetry import NodeEvent, NodeReport, ProcessState, RankSample, Unreadable
from holdfast.watchdog.detectors.detector import CollectiveBroke, Exited, Reported, RoundStarted

JOB = "research/gpt"


def policy(**changes: object) -> Policy:
    return Policy(**{"job": JOB, "nodes_min": 1, "nodes_max": 2, "processes_per_node": 2, **changes})  # type: ignore[arg-type]


def a_round(number: int = 1, *, nodes: int = 2, local_size: int = 2) -> Round:
    ranks = tuple(MemberRanks(f"m{node}", f"n{node}", node * local_size, local_size) for node in range(nodes))
    return Round(JOB, number, ranks, Endpoint("127.0.0.1", 29500), Restore(), Entry.REENTER, "test")


def started(number: int = 1, *, nodes: int = 2, local_size: int = 2) -> RoundStarted:
    return RoundStarted(a_round(number, nodes=nodes, local_size=local_size))


def exited(
    rank: int,
    *,
    round_number: int = 1,
    age_s: float = 0.0,
    code: int | None = None,
    signal: int | None = None,
    error: str = "",
    raised: str = "",
    place: str = "",
    began: bool = True,
    own_limit: bool = False,
    trace: str = "",
    left: bool = False,
    asked_by: int | None = None,
) -> Exited:
    """A worker that had trained, unless told otherwise."""
    node = rank // 2
    how = (code, signal, error, raised, place, began, own_limit, trace, left, asked_by)
    exit = WorkerExited(round_number, rank, age_s, *how)
    return Exited(f"m{node}", f"n{node}", exit)


def broke(rank: int, *, round_number: int = 1, age_s: float = 0.0, error: str = "") -> CollectiveBroke:
    node = rank // 2
    return CollectiveBroke(f"m{node}", f"n{node}", CollectiveFailed(round_number, rank, age_s, error))


def rank_sample(rank: int, **changes: object) -> RankSample:
    """A healthy rank in the middle of its step."""
    healthy = {
        "round": 1,
        "process": ProcessState.RUNNING,
        "phase": Phase.BACKWARD,
        "progress_age_s": 0.02,
        "phase_age_s": 0.02,
        "pulse_age_s": 0.05,
        "pid": 1000 + rank,
        "step": 10,
        "step_time_s": 0.1,
        "collective_sequence": 100,
    }
    return RankSample(rank=rank, **{**healthy, **changes})  # type: ignore[arg-type]


def reported(
    node: str, *samples: RankSample, events: tuple[NodeEvent, ...] = (), unreadable: tuple[Unreadable, ...] = ()
) -> Reported:
    return Reported(NodeReport(node, "boot", 1, samples, events=events, unreadable=unreadable))
