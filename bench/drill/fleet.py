"""Several nodes on this machine that train one job together, and somebody who keeps them going."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import psutil

from drill.processes import Tree
from drill.steplog import Kind, Mark, StepLog, newest_by_rank

SCRIPTS: Final = Path(__file__).parent / "scripts"
LOOK_INTERVAL_S: Final = 0.02  # what is waited for carries its own time, so looking late costs no accuracy
SETTLED_STEPS: Final = 30
START_WITHIN_S: Final = 45.0

T = TypeVar("T")


class NotStarted(Exception):
    """Training did not begin, so that no fault could be put into it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many nodes a job may have, and how many ranks each of them runs."""

    nodes_min: int
    nodes_max: int
    local_size: int

    def __str__(self) -> str:
        return f"{self.nodes_max}x{self.local_size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a fleet is started with. `folder` is empty and belongs to it."""

    shape: Shape
    folder: Path
    environment: Mapping[str, str] = field(repr=False)


class Fleet(ABC):
    """The nodes of one job. Whoever opens one ends its processes with `none_left_behind`."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.log = StepLog(terms.folder / "steps.log")
        self._nodes: dict[int, list[Tree]] = {}

    @abstractmethod
    def start_supervision(self) -> None:
        """Start what belongs to no node."""

    @abstractmethod
    def start_node(self, number: int) -> None:
        """Start a node, and wait for nothing."""

    @abstractmethod
    def host(self) -> int:
        """The node whose loss the supervisor takes worst: it has its store, or rank 0."""

    def start(self, nodes: int) -> None:
        """Start that many nodes and wait until every rank has settled. Raises NotStarted."""
        self.start_supervision()
        for number in range(nodes):
            self.start_node(number)
        world = nodes * self.terms.shape.local_size
        self.wait_for(lambda: settled(self.log.marks(), world) or self._ended() or None, START_WITHIN_S)
        if not settled(self.log.marks(), world):
            raise NotStarted(f"{world} ranks did not train within {START_WITHIN_S:.0f} s: {self._last_words()}")

    def node_processes(self, number: int) -> list[psutil.Process]:
        """Everything that runs on the node, parents before their children."""
        return [process for tree in self._nodes[number] for process in tree.members()]

    def other_than_host(self) -> int:
        """A node that is not `host`."""
        host = self.host()
        return next(number for number in self._nodes if number != host)

    def worker_on(self, number: int) -> Mark:
        """The newest mark of the lowest rank that runs on the node."""
        here = {process.pid for process in self.node_processes(number)}
        newest = newest_by_rank(self.log.marks())
        return next(mark for _, mark in sorted(newest.items()) if mark.pid in here)

    def wait_for(self, look: Callable[[], T | None], timeout_s: float) -> T | None:
        """What `look` finds, None when it finds nothing in time."""
        give_up = time.monotonic() + timeout_s
        while (found := look()) is None and time.monotonic() < give_up:
            time.sleep(LOOK_INTERVAL_S)
        return found

    def _ended(self) -> bool:
        """Whether a process that should live as long as its node has ended on its own."""
        roots = [tree.root for trees in self._nodes.values() for tree in trees]
        return any(root.status() == psutil.STATUS_ZOMBIE for root in roots if root.is_running())

    def _last_words(self) -> str:
        logs = sorted(self.terms.folder.glob("node-*.log"))
        return " | ".join(log.read_text().strip().rpartition("\n")[2] for log in logs if log.stat().st_size)

    def _launch(self, number: int, part: str, command: Sequence[str]) -> Tree:
        log = self.terms.folder / f"node-{number}.{part}.log"
        tree = Tree.start(command, log=log, environment=self.terms.environment)
        self._nodes.setdefault(number, []).append(tree)
        return tree


def settled(marks: Sequence[Mark], world: int) -> bool:
    """Whether every rank of a `world` has trained long enough to be past the slow first steps."""
    steps = dict.fromkeys(range(world), 0)
    for mark in marks:
        if mark.world == world:
            steps[mark.rank] = 0 if mark.kind is Kind.BEGUN else steps[mark.rank] + 1
    return all(count >= SETTLED_STEPS for count in steps.values())
