"""The machines of a simulated fleet: who is where, what is wrong with whom, and who is away for repair."""

import random
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property

from holdfast.simulator.fault import Fault
from holdfast.simulator.scenario import Fleet
from holdfast.simulator.world.cluster import Cluster, Supplied


@dataclass(eq=False)
class Machine:
    """One machine of the run `seed`. `defects` are what is wrong with it until it is repaired, by name."""

    seed: int
    number: int
    rack: int
    switch: int
    defects: dict[str, Fault] = field(default_factory=dict)
    member: str | None = None  # the pod on it
    away: bool = False
    shown: bool = False  # its defects have done harm

    @cached_property
    def draw(self) -> random.Random:
        """How long what befalls it lasts: numbers of its own, so that another policy draws the same ones."""
        return random.Random(f"{self.seed} {self.node}")

    @property
    def node(self) -> str:
        """Its name in the cluster."""
        return f"n{self.number}"


class Machines(Cluster):
    """As many as the job has nodes and spares, and those that the cluster has besides."""

    def __init__(self, fleet: Fleet, seed: int) -> None:
        super().__init__()
        count = fleet.nodes + fleet.spares + fleet.free
        self.all = [Machine(seed, each, each // fleet.rack, each // fleet.switch) for each in range(count)]
        self._idle = deque(self.all)
        self._pods = 0
        self.sent: list[Machine] = []  # taken out of the job since somebody looked last

    def supply(self) -> Supplied | None:
        if not self._idle:
            return None
        machine = self._idle.popleft()
        self._pods += 1
        machine.member = f"m{self._pods}"
        return Supplied(machine.node, machine.member, f"rack-{machine.rack}")

    def take_back(self, node: str, why: str) -> None:
        machine = self.of(node)
        machine.member, machine.away = None, True
        self.sent.append(machine)

    def back(self, machine: Machine) -> None:
        """It is as good as new, and idle."""
        machine.away = machine.shown = False
        machine.defects.clear()
        self._idle.append(machine)

    def of(self, node: str) -> Machine:
        """The machine of that name."""
        return self.all[int(node[1:])]

    def behind(self, machine: Machine, *, switch: bool) -> list[Machine]:
        """All that share its switch, or its rack."""
        if switch:
            return [each for each in self.all if each.switch == machine.switch]
        return [each for each in self.all if each.rack == machine.rack]
