"""When faults come, and to whom: drawn by their rates, each kind from numbers of its own.

So a seed gives the same faults whatever the policy makes of them, and two policies can be compared on them; a
machine of a larger fleet fails when it does in a smaller one.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from holdfast.simulator.fault import Fault, FaultRate, Happening, Symptom
from holdfast.simulator.fleet.fleetworld import BEFORE_S, FleetWorld
from holdfast.simulator.fleet.machines import Machine
from holdfast.simulator.fleet.strikes import OF_NO_MACHINE, OF_WORKERS, STRIKES, behind, slow_storage
from holdfast.simulator.scenario import DAY_S, Scenario

# How long whoever is struck is watched, unless it takes longer to find out what is wrong.
WATCHED_S = 8.0
FIRST_BLOCK: Final = 8


def blocks(count: int) -> Iterator[range]:
    """The numbers of so many machines, and maybe of more, in blocks that are the same ones whatever `count` is."""
    block = range(FIRST_BLOCK)
    while block.start < count:
        yield block
        block = range(block.stop, 2 * block.stop)


class Hazards:
    """What befalls one run. `counted` is how often each fault came to machines with ranks, by its name.

    Machines fail whether they have ranks or not. What is wrong with one that has none shows once it has some.
    """

    def __init__(self, world: FleetWorld, scenario: Scenario, seed: int) -> None:
        self.counted: Counter[str] = Counter({fault.name: 0 for fault in scenario.faults})
        self._world = world
        for fault in scenario.faults:
            for block in blocks(len(world.cluster.all)) if fault.rate > 0.0 else ():
                self._next(fault, block, random.Random(f"{seed} {fault.name} {block.start}"))
        for given in scenario.happenings:
            world.after(given.at_s, partial(self._happens, given))

    def _next(self, fault: FaultRate, block: range, draw: random.Random) -> None:
        per_s = fault.rate * len(block) / (1000.0 * DAY_S)
        self._world.after(draw.expovariate(per_s), partial(self._comes, fault, block, draw))

    def _comes(self, fault: FaultRate, block: range, draw: random.Random) -> None:
        number, infrastructure = block[int(draw.random() * len(block))], draw.random() < fault.infrastructure
        self._next(fault, block, draw)
        if number < len(self._world.cluster.all):
            self._befall(fault, self._world.cluster.all[number], infrastructure=infrastructure)

    def _happens(self, given: Happening) -> None:
        machine = self._with_ranks() if given.node is None else self._world.cluster.all[given.node]
        infrastructure = self._world.draw.random() < given.fault.infrastructure
        self._befall(given.fault, machine, infrastructure=infrastructure, comes_again=False)

    def _with_ranks(self) -> Machine:
        """One of the machines with ranks; while there is no round, of those there are."""
        world = self._world
        round = world.job.state.round
        if round is None:
            return world.draw.choice(world.cluster.all)
        return world.cluster.of(world.draw.choice(round.ranks).node)

    def _befall(self, fault: Fault, machine: Machine, *, infrastructure: bool, comes_again: bool = True) -> None:
        world = self._world
        # Who is being repaired will be as good as new.
        hit = [each for each in behind(world, machine, fault) if not each.away]
        if any(each.member is not None and world.has_ranks(each.member) for each in hit):
            self.counted[fault.name] += 1
        infrastructure &= fault.symptom not in OF_NO_MACHINE
        if infrastructure:
            defect = msgspec.structs.replace(fault)  # this one, and not another of its kind
            for each in hit:
                each.defects[fault.name] = defect
                if each.member is not None and not world.has_ranks(each.member):
                    world.break_spare(each.member)
            if comes_again:
                self._comes_again(defect, hit, machine.draw)
        self._strike(fault, hit, machine.draw, infrastructure=infrastructure)

    def _comes_again(self, defect: Fault, hit: Sequence[Machine], draw: random.Random) -> None:
        self._world.after(defect.again.drawn(draw), partial(self._again, defect, hit, draw))

    def _again(self, defect: Fault, hit: Sequence[Machine], draw: random.Random) -> None:
        """It shows once more, on those that are not repaired."""
        left = [each for each in hit if each.defects.get(defect.name) is defect]
        if left:
            self._comes_again(defect, left, draw)
            self._strike(defect, left, draw, infrastructure=True)

    def _strike(self, fault: Fault, hit: Sequence[Machine], draw: random.Random, *, infrastructure: bool) -> None:
        world = self._world
        world.training.agree()
        if fault.symptom is Symptom.STORAGE_SLOW:
            slow_storage(world, fault, draw)
            return
        names = [each.member for each in hit if each.member is not None and world.has_ranks(each.member)]
        self._befall_members(
            fault, self._ready(fault, names, infrastructure=infrastructure), infrastructure=infrastructure
        )

    def _befall_members(self, fault: Fault, names: Sequence[str], *, infrastructure: bool) -> None:
        """Those of them that have ranks, in a moment: until then they are watched as they are."""
        world = self._world
        if there := [name for name in names if world.has_ranks(name)]:
            world.watch(there, BEFORE_S + WATCHED_S)
            world.after(BEFORE_S, partial(self._hits, fault, there, infrastructure=infrastructure))

    def _ready(self, fault: Fault, names: Sequence[str], *, infrastructure: bool) -> list[str]:
        """Those that the fault can befall now; the others it does as soon as their workers run."""
        world, ready = self._world, []
        for name in names:
            if fault.symptom in OF_WORKERS and not world.runs_workers(world.members[name]):
                again = partial(self._befall_members, fault, (name,), infrastructure=infrastructure)
                world.training.at_next_round((fault.name, name), again)
            else:
                ready.append(name)
        return ready

    def _hits(self, fault: Fault, names: list[str], *, infrastructure: bool) -> None:
        world = self._world
        there = [name for name in names if world.has_ranks(name)]
        for name in self._ready(fault, there, infrastructure=infrastructure):
            if world.has_ranks(name):  # what befell one before may have taken it along
                world.machine_of(world.members[name]).shown |= infrastructure
                STRIKES[fault.symptom](world, world.members[name], fault, infrastructure=infrastructure)
