"""What makes a rank slow: the parts of its steps beside its peers', the work it had, and what its sensors say.

Little of what makes jobs slow is a broken machine: it is the last stage of the pipeline, sequences of unequal
length and Python's garbage collector. So a machine is named last, for what nothing else explains.
Source: https://arxiv.org/abs/2505.05713 (section 5, the causes of slow steps in 3,079 jobs)
"""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from holdfast.api.condition import ConditionKind, ConditionState
from holdfast.api.finding import SlowCause
from holdfast.api.telemetry import NodeReport, StepWork
from holdfast.watchdog.detectors.peers import busy_s, is_told

MOSTLY = 0.5  # of what a rank is beyond its peers
# What attention costs grows with the square of a sequence's length, all else with the number of tokens.
POWER_OF_LENGTH = 2.0
TOLD_PEERS_MAX = 64  # a median of so many is as good as that of thousands
# NVML: that a GPU is idle, and that somebody set its clocks, holds nothing down that should be faster.
HARMLESS_THROTTLE = 0x1 | 0x2
SLOWS_DOWN = frozenset(
    {
        ConditionKind.ECC_CORRECTED_STORM,
        ConditionKind.PCIE_DEGRADED,
        ConditionKind.PCIE_REPLAYS,
        ConditionKind.NVLINK_DOWN,
        ConditionKind.NVLINK_ERRORS,
        ConditionKind.POWER_BRAKE,
        ConditionKind.LINK_FLAPPING,
        ConditionKind.LINK_ERRORS,
        ConditionKind.LINK_DEGRADED,
        ConditionKind.MEMORY_LOW,
    }
)


class Parts(NamedTuple):
    """Of an average step: seconds, and tokens and the longest sequence (0.0: not told)."""

    data: float
    checkpoint: float
    collected: float
    delayed: float
    stopped: float
    own: float  # 0.0 where it is not known how long of it the rank waited
    busy: float
    tokens: float
    longest: float


class Excess(NamedTuple):
    """Seconds of a step that a rank is beyond its peers, by what it is; `work` is what more work explains."""

    data: float
    checkpoint: float
    collected: float
    delayed: float
    stopped: float
    own: float
    work: float
    rest: float

    @property
    def total(self) -> float:
        return sum(self)


SAYS = {
    "data": "waits for its data",
    "checkpoint": "saves checkpoints",
    "collected": "collects garbage",
    "delayed": "is ready without a processor: something else runs on its host, or its CPU limit is low",
    "stopped": "was stopped",
    "own": "does work of the script's own between its steps, behind run.step",
    "work": "has more to do: more tokens, or longer sequences",
    "rest": "computes",
}
CAUSES = {
    "data": SlowCause.DATA,
    "checkpoint": SlowCause.SOFTWARE,
    "collected": SlowCause.SOFTWARE,
    "delayed": SlowCause.SOFTWARE,
    "stopped": SlowCause.SOFTWARE,
    "own": SlowCause.SOFTWARE,
    "work": SlowCause.SHAPE,
    "rest": SlowCause.MACHINE,
}


# What another node may mend: of software, what comes from outside the process.
OF_THE_NODE = frozenset(SAYS[each] for each in ("delayed", "stopped", "rest"))


def parts(before: StepWork, now: StepWork) -> Parts:
    """What the steps between two samples of a rank were made of."""
    steps = max(1, now.steps - before.steps)

    def told(then: float | None, later: float | None) -> float:
        return 0.0 if then is None or later is None else max(0.0, later - then) / steps

    return Parts(
        told(before.data_s, now.data_s),
        told(before.checkpoint_s, now.checkpoint_s),
        told(before.collected_s, now.collected_s),
        told(before.delayed_s, now.delayed_s),
        told(before.stopped_s, now.stopped_s),
        told(before.own_s, now.own_s) if is_told(before) and is_told(now) else 0.0,
        told(busy_s(before), busy_s(now)),
        told(before.tokens, now.tokens),
        told(before.longest, now.longest),
    )


def of_peers(all_parts: Iterable[Parts]) -> Parts | None:
    """Of each part the median. None: there are no peers."""
    sums = list(zip(*all_parts, strict=True))
    return Parts(*map(median, sums)) if sums else None


def excess(mine: Parts, peers: Parts, beyond_s: float) -> Excess:
    """`beyond_s` seconds a step, split by what they are."""
    split = [max(0.0, mine[part] - peers[part]) for part in range(6)]
    told = sum(split)
    if told > beyond_s > 0.0:  # one part may hide in another, as garbage is collected while data is loaded
        split = [each * beyond_s / told for each in split]
    rest = max(0.0, beyond_s - sum(split))
    trained_s = max(0.0, peers.busy - peers.data - peers.checkpoint)
    tokens = mine.tokens / peers.tokens if peers.tokens else 1.0
    longest = (mine.longest / peers.longest) ** POWER_OF_LENGTH if peers.longest else 1.0
    data, checkpoint, collected, delayed, stopped, own = split
    # Who computes longer for having more to do is also longer ready without a processor, and makes more garbage.
    explained = max(0.0, max(tokens, longest) - 1.0) * trained_s
    work = min(rest + delayed + collected, explained)
    of_rest = min(rest, work)
    of_delayed = min(delayed, work - of_rest)
    collected -= work - of_rest - of_delayed
    return Excess(data, checkpoint, collected, delayed - of_delayed, stopped, own, work, rest - of_rest)


def added(each: Sequence[Excess]) -> Excess:
    """All of them together."""
    return Excess(*map(sum, zip(*each, strict=True)))


def cause_of(of: Excess) -> tuple[SlowCause, str]:
    """The cause, and in words what the rank does longer than its peers. A machine is named only for most of it."""
    by_cause: dict[SlowCause, float] = {}
    for part, seconds in zip(Excess._fields, of, strict=True):
        by_cause[CAUSES[part]] = by_cause.get(CAUSES[part], 0.0) + seconds
    if by_cause[SlowCause.MACHINE] <= MOSTLY * of.total:
        del by_cause[SlowCause.MACHINE]
    cause = max(by_cause, key=lambda each: by_cause[each])
    of_cause = {part: getattr(of, part) for part in Excess._fields if CAUSES[part] is cause}
    return cause, SAYS[max(of_cause, key=lambda part: of_cause[part])]


def sensed(report: NodeReport) -> list[str]:
    """What the node's sensors say that makes a machine slow."""
    conditions = [
        f"{each.kind.value}{' of GPU ' + each.gpu if each.gpu else ''}"
        for each in report.conditions
        if each.state is ConditionState.RAISED and each.kind in SLOWS_DOWN
    ]
    held_down = [
        f"GPU {each.uuid} is held down (NVML reasons {each.throttle:#x})"
        + (f" at {each.temperature_c:.0f} C" if each.temperature_c is not None else "")
        for each in report.gpus
        if each.throttle is not None and each.throttle & ~HARMLESS_THROTTLE
    ]
    return conditions + held_down


def grown(before: Parts, now: Parts, longer_s: float, *, is_told: bool) -> str:
    """In words, what it is that takes all ranks longer than before."""
    if now.data - before.data >= MOSTLY * longer_s:
        return "all wait for their data: the storage is suspect"
    if not is_told:
        return "nobody waits longer for data: the network, or what all compute, is suspect"
    if now.busy - before.busy >= MOSTLY * longer_s:
        return "all compute longer: the script, or what all machines share, as power and cooling, is suspect"
    return "all wait for each other: the network is suspect"


def all_told(works: Iterable[StepWork]) -> bool:
    """Whether of all of them it is known how long they waited."""
    return all(map(is_told, works))
