"""The fault script of a run: which faults to inject, at which step. For drills, demos and tests.

A YAML list, executed in order, each entry once:

    - at: {step: 30}        # when the job's step has reached it
      do: kill-worker       # SIGKILL the process of a rank
      rank: 1
    - at: {step: 60}
      after: recovered      # and the fault before was noticed and is healed; noticed: it was noticed
      do: kill-node         # SIGKILL launcher, agent and workers of a node
      node: node-2          # or rank: the node that runs it

    do               whom          what happens
    kill-worker      rank          SIGKILL of the worker process
    stop-worker      rank          SIGSTOP of it: it hangs
    raise            rank          its training function raises RuntimeError
    break-collective rank          the connections of its process group break; the process lives
    slow             rank          each of `for` (default 10) steps takes `seconds` (1) longer
    nan              rank          its model computes NaN for `for` (1) steps, at `step` or soon after
    spike            rank          publishes the loss of `for` (1) steps `times` (100) what it is
    wrong-data       rank          the batch before is given in `for` (1) steps in its place
    full-disk        rank          nothing of a checkpoint can be written (ENOSPC) for `for` (50) steps
    flip-bit         rank          bit `bit` (default 12) of a parameter of it is flipped, at `step` or soon after
    kill-node        rank or node  everything of the node is killed at once
    kill-launcher    rank or node  SIGKILL of the launcher alone
    end-launcher     rank or node  SIGTERM of the launcher: it leaves in good order
    kill-agent       rank or node  SIGKILL of the agent; it is started again after a second
    partition        rank or node  nothing passes between the node and the watchdog for `seconds` (10)
    drain            rank or node  the node is to be left, as `kubectl drain` asks for it
    preempt          rank or node  a notice: the machine is taken away in `seconds` (120)
    xid              rank or node  the simulated GPU `gpu` (default 0) raises `xid`
    gpu-lost         rank or node  the simulated GPU `gpu` answers no more
    hot              rank or node  the simulated GPU `gpu` has `celsius` (default 95) from now on
    condition        rank or node  the condition `kind` is raised, of the simulated GPU `gpu` or of the node
    compute-wrong    node          self-tests of the simulated GPU `gpu` go wrong one time in fifty, from the start
    kill-watchdog    neither       SIGKILL of the watchdog

`Deed.seen_as` says what each is seen as. What the script cannot be made to suffer, since it does not use
holdfast.trainer, or holdfast.checkpoint for wrong-data and full-disk, is told as not injected.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from holdfast.agent.sensors.simulated_gpu import gpu_uuid
from holdfast.api.bitflip import CORRUPTIBLE_VARIABLE
from holdfast.api.condition import ConditionKind
from holdfast.api.disturbance import Ailment, Disturbance
from holdfast.api.drill import Drill
from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.finding import FindingKind
from holdfast.api.section import MISSING, Section, contradiction, parse
from holdfast.cli.embedded.jobfile import read_documents

_RANK: Final = ("rank",)
_EITHER: Final = ("rank", "node")
_GPU: Final = (*_EITHER, "gpu")
Names = tuple[str, ...]
Kinds = tuple[FindingKind, ...]


class Deed(StrEnum):
    """What can be done to a run.

    `reads` are the fields of a fault beside `at`, `do` and `after`; what is not among them is refused.
    `seen_as` is what it leads to findings of, the surest first; empty where it leads to none.
    """

    reads: Names
    seen_as: Kinds

    def __new__(cls, word: str, reads: Names, seen_as: Kinds = ()) -> Self:
        deed = str.__new__(cls, word)
        deed._value_ = word
        deed.reads, deed.seen_as = reads, seen_as
        return deed

    # The latter before new progress.
    KILL_WORKER = "kill-worker", _RANK, (FindingKind.PROCESS_EXIT, FindingKind.CRASH_LOOP)
    STOP_WORKER = "stop-worker", _RANK, (FindingKind.HANG,)
    RAISE = "raise", _RANK, (FindingKind.USER_CODE,)
    BREAK_COLLECTIVE = "break-collective", _RANK, (FindingKind.COLLECTIVE_FAILED,)
    # A Straggler or a Hang only where it lasts: nothing is sure to come of it.
    SLOW = "slow", (*_RANK, "for", "seconds")
    NAN = "nan", (*_RANK, "for"), (FindingKind.NON_FINITE,)
    SPIKE = "spike", (*_RANK, "for", "times")
    WRONG_DATA = "wrong-data", (*_RANK, "for"), (FindingKind.DATA,)
    FULL_DISK = "full-disk", (*_RANK, "for"), (FindingKind.PROCESS_EXIT,)  # after three saves that failed in a row
    FLIP_BIT = "flip-bit", (*_RANK, "bit"), (FindingKind.CORRUPTION,)
    KILL_NODE = "kill-node", _EITHER, (FindingKind.MEMBER_LOST,)
    KILL_LAUNCHER = "kill-launcher", _EITHER, (FindingKind.MEMBER_LOST,)
    END_LAUNCHER = "end-launcher", _EITHER  # a departure
    KILL_AGENT = "kill-agent", _EITHER  # its ranks are Unknown until it is back
    PARTITION = "partition", (*_EITHER, "seconds"), (FindingKind.MEMBER_LOST,)
    DRAIN = "drain", _EITHER  # a departure
    PREEMPT = "preempt", (*_EITHER, "seconds")  # a departure
    XID = "xid", (*_GPU, "xid"), (FindingKind.XID,)
    GPU_LOST = "gpu-lost", _GPU, (FindingKind.GPU_LOST,)
    HOT = "hot", (*_GPU, "celsius"), (FindingKind.THERMAL,)
    CONDITION = "condition", (*_GPU, "kind"), (FindingKind.CONDITION,)
    COMPUTE_WRONG = "compute-wrong", ("node", "gpu"), (FindingKind.SELF_TEST,)
    KILL_WATCHDOG = "kill-watchdog", ()


class After(StrEnum):
    """What else must hold before a fault happens."""

    NOTICED = "noticed"  # the fault before has led to an incident of its kind, or to a new round
    RECOVERED = "recovered"  # that, and no incident is open any more


_NEEDS: Final = {Deed.XID: ("xid", "such as 79"), Deed.CONDITION: ("kind", "such as PcieDegraded")}
# The job saves and goes on in a new round without the node; where it is only observed, an incident says so.
DEPARTURES: Final = frozenset({Deed.END_LAUNCHER, Deed.DRAIN, Deed.PREEMPT})


class When(Section):
    """The job's step has reached `step`. Step 0: the round runs, also where the script tells no steps."""

    step: Annotated[int, Field(ge=0)]


class ScriptedFault(Section):
    """One fault."""

    at: When
    do: Deed
    after: After | None = None
    rank: Annotated[int, Field(ge=0)] | None = None
    node: str | None = None
    gpu: Annotated[int, Field(ge=0)] | None = None
    xid: Annotated[int, Field(ge=1, le=1023)] | None = None
    bit: Annotated[int, Field(ge=0, le=63)] | None = None
    steps: Annotated[int | None, Field(ge=1, alias="for")] = None
    seconds: Annotated[float, Field(gt=0, le=3600)] | None = None
    times: Annotated[float, Field(gt=0)] | None = None
    celsius: Annotated[float, Field(ge=0, le=150)] | None = None
    kind: ConditionKind | None = None

    @model_validator(mode="after")
    def _says_whom(self) -> Self:
        reads = self.do.reads
        for field, info in type(self).model_fields.items():
            name = info.alias or field
            if name not in (*reads, "at", "do", "after") and (value := getattr(self, field)) is not None:
                raise contradiction(name, value, f"remove it; {self.do} does not read it")
        if "rank" in reads and "node" in reads:
            if (self.rank is None) == (self.node is None):
                given = "both" if self.rank is not None else MISSING
                raise contradiction("node", given, f"{self.do} needs either a rank or a node")
        elif reads and getattr(self, reads[0]) is None:
            raise contradiction(reads[0], MISSING, f"add it; {self.do} needs a {reads[0]}")
        needed, example = _NEEDS.get(self.do, ("at", ""))
        if getattr(self, needed) is None:
            raise contradiction(needed, MISSING, f"add it, {example}")
        return self

    def __str__(self) -> str:
        whom = f" of rank {self.rank}" if self.rank is not None else f" of {self.node}" if self.node else ""
        what = self.xid if self.xid is not None else self.kind
        return f"{self.do}{whom}" if what is None else f"{self.do} {what}{whom}"


class _Script(Section):
    faults: tuple[ScriptedFault, ...]


def check_whom(faults: Sequence[ScriptedFault], *, nodes_max: int, local_size: int) -> None:
    """Raises InvalidInput when a fault names a rank that the job never has, or a GPU that no node has."""
    ranks_max = nodes_max * local_size
    no_rank = f"the job has at most {ranks_max} ranks, 0 to {ranks_max - 1}"
    no_gpu = f"a node has {local_size} GPUs, 0 to {local_size - 1}"
    problems = [
        Problem(f"faults[{place}].{name}", value, fix)
        for name, count, fix in (("rank", ranks_max, no_rank), ("gpu", local_size, no_gpu))
        for place, fault in enumerate(faults)
        if (value := getattr(fault, name)) is not None and value >= count
    ]
    if problems:
        raise InvalidInput(*problems)


def read_fault_script(file: Path) -> tuple[ScriptedFault, ...]:
    """The faults of a file, in order. Raises InvalidInput, InvalidSpec naming `faults[2].rank` and the like."""
    documents = read_documents(file)
    if len(documents) != 1 or not isinstance(documents[0], list):
        raise InvalidInput(Problem("faults", str(file), "write one list of faults, each with `at` and `do`"))
    return parse(_Script, {"faults": documents[0]}).faults


# How rarely known bad parts went wrong: one run of fifty. Source: AEGIS-SDC (OSDI 2026).
PROBABILITY: Final = 0.02
SEED: Final = 7
AILMENTS: Final = {Deed[each.name]: each for each in Ailment}
_CORRUPTING: Final = frozenset({Deed.FLIP_BIT, Deed.NAN, Deed.COMPUTE_WRONG, *AILMENTS})
# How many steps each lasts unasked. A disk is full for long enough that three saves in a row meet it.
_STEPS: Final = {Deed.SLOW: 10, Deed.FULL_DISK: 50}


def variables_of(faults: Sequence[ScriptedFault]) -> Mapping[str, str]:
    """What the processes of all nodes need in their environment, so that corruption reaches them on request."""
    return {CORRUPTIBLE_VARIABLE: "1"} if any(fault.do in _CORRUPTING for fault in faults) else {}


def disturbance_of(fault: ScriptedFault) -> Disturbance:
    """What a rank is asked to suffer for the fault, which is one of `AILMENTS`."""
    return Disturbance(
        ailment=AILMENTS[fault.do],
        rank=fault.rank or 0,
        steps=fault.steps or _STEPS.get(fault.do, 1),
        seconds=fault.seconds or 1.0,
        times=fault.times or 100.0,
    )


def is_relayed(faults: Sequence[ScriptedFault]) -> bool:
    """Whether nodes must be started so that they can be cut off."""
    return any(fault.do is Deed.PARTITION for fault in faults)


def drills_of(faults: Sequence[ScriptedFault], *, gpus: int) -> Mapping[str, Drill]:
    """What each node that computes wrong is started with; `gpus` is how many it has."""
    inject: dict[str, list[str]] = {}
    for fault in faults:
        if fault.do is Deed.COMPUTE_WRONG and fault.node is not None:
            device = gpu_uuid(fault.node, fault.gpu or 0)
            flip = f"flip:probability={PROBABILITY}:seed={SEED}:device={device}"
            inject.setdefault(fault.node, []).append(flip)
    return {
        node: Drill(tuple(gpu_uuid(node, index) for index in range(gpus)), tuple(flips))
        for node, flips in inject.items()
    }
