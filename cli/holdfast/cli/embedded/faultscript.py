"""The fault script of a run: which faults to inject, at which step. For drills, demos and tests.

A YAML list, executed in order, each entry once:

    - at: {step: 30}        # when the job's step has reached it
      do: kill-worker       # SIGKILL the process of a rank
      rank: 1
    - at: {step: 60}
      after: recovered      # and no incident is open any more
      do: kill-node         # SIGKILL launcher, agent and workers of a node
      node: node-2          # or rank: the node that runs it

    do            rank or node    what happens
    kill-worker   rank            SIGKILL of the worker process
    stop-worker   rank            SIGSTOP of it: it hangs
    flip-bit      rank            bit `bit` (default 12) of a parameter of it is flipped, at `step` or soon after
    kill-node     rank or node    everything of the node is killed at once
    kill-launcher rank or node    SIGKILL of the launcher alone
    xid           rank or node    the simulated GPU `gpu` (default 0) raises `xid`
    gpu-lost      rank or node    the simulated GPU `gpu` answers no more
    compute-wrong node            self-tests of the simulated GPU `gpu` go wrong one time in fifty, from the start
    kill-watchdog neither         SIGKILL of the watchdog
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.section import MISSING, Section, contradiction, parse
from holdfast.cli.manifest import read_documents


class Deed(StrEnum):
    """What can be done to a run."""

    KILL_WORKER = "kill-worker"
    STOP_WORKER = "stop-worker"
    FLIP_BIT = "flip-bit"
    KILL_NODE = "kill-node"
    KILL_LAUNCHER = "kill-launcher"
    XID = "xid"
    GPU_LOST = "gpu-lost"
    COMPUTE_WRONG = "compute-wrong"
    KILL_WATCHDOG = "kill-watchdog"


class After(StrEnum):
    """What else must hold before a fault happens."""

    RECOVERED = "recovered"


class When(Section):
    """The job's step has reached `step`."""

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

    @model_validator(mode="after")
    def _says_whom(self) -> Self:
        match self.do:
            case Deed.KILL_WATCHDOG:
                self._refuse_fields("rank", "node", "gpu", "xid")
            case Deed.KILL_WORKER | Deed.STOP_WORKER | Deed.FLIP_BIT:
                self._refuse_fields("node", "gpu", "xid")
                if self.rank is None:
                    raise contradiction("rank", MISSING, f"add it; {self.do} needs a rank")
            case Deed.COMPUTE_WRONG:
                self._refuse_fields("rank", "xid")
                if self.node is None:
                    raise contradiction("node", MISSING, f"add it; {self.do} needs a node")
            case _:
                if (self.rank is None) == (self.node is None):
                    given = "both" if self.rank is not None else MISSING
                    raise contradiction("node", given, f"{self.do} needs either a rank or a node")
                if self.do in (Deed.KILL_NODE, Deed.KILL_LAUNCHER):
                    self._refuse_fields("gpu", "xid")
        if self.do is not Deed.FLIP_BIT:
            self._refuse_fields("bit")
        if (self.do is Deed.XID) != (self.xid is not None):
            fix = "add it, such as 79" if self.do is Deed.XID else f"remove it; {self.do} does not read it"
            raise contradiction("xid", self.xid or MISSING, fix)
        return self

    def _refuse_fields(self, *names: str) -> None:
        for name in names:
            if (value := getattr(self, name)) is not None:
                raise contradiction(name, value, f"remove it; {self.do} does not read it")

    def __str__(self) -> str:
        whom = f" of rank {self.rank}" if self.rank is not None else f" of {self.node}" if self.node else ""
        what = f"{self.do} {self.xid}" if self.xid is not None else str(self.do)
        return f"{what}{whom}"


class _Script(Section):
    faults: tuple[ScriptedFault, ...]


def check_whom(faults: Sequence[ScriptedFault], *, nodes_max: int, local_size: int) -> None:
    """Raises InvalidInput when a fault names a rank that the job never has, or computes on a GPU no node has."""
    ranks_max = nodes_max * local_size
    problems = [
        Problem(
            f"faults[{place}].rank", fault.rank, f"the job has at most {ranks_max} ranks, 0 to {ranks_max - 1}"
        )
        for place, fault in enumerate(faults)
        if fault.rank is not None and fault.rank >= ranks_max
    ]
    problems += [
        Problem(f"faults[{place}].gpu", fault.gpu, f"a node has {local_size} GPUs, 0 to {local_size - 1}")
        for place, fault in enumerate(faults)
        if fault.do is Deed.COMPUTE_WRONG and (fault.gpu or 0) >= local_size
    ]
    if problems:
        raise InvalidInput(*problems)


def read_fault_script(file: Path) -> tuple[ScriptedFault, ...]:
    """The faults of a file, in order. Raises InvalidInput, InvalidSpec naming `faults[2].rank` and the like."""
    documents = read_documents(file)
    if len(documents) != 1 or not isinstance(documents[0], list):
        raise InvalidInput(Problem("faults", str(file), "write one list of faults, each with `at` and `do`"))
    document: Mapping[str, Any] = {"faults": documents[0]}
    return parse(_Script, document).faults
