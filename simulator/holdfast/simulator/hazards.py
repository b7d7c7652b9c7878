"""When faults come, and to whom: drawn by their rates, each kind from numbers of its own.

So a seed gives the same faults whatever the policy makes of them, and two policies can be compared on them.
"""

import random
from collections import Counter
from functools import partial

from holdfast.simulator.fault import Fault, FaultRate, Happening, Symptom
from holdfast.simulator.fleetworld import BEFORE_S, FleetWorld
from holdfast.simulator.machines import Machine
from holdfast.simulator.scenario import DAY_S, Scenario
from holdfast.simulator.strikes import OF_WORKERS, STRIKES, behind, slow_storage

# How long whoever is struck is watched, unless it takes longer to find out what is wrong.
WATCHED_S = 8.0


class Hazards:
    """What befalls one run. `counted` is how often each fault came to a machine with ranks, by its name.

    Machines fail whether they have ranks or not. What is wrong with one that has none shows once it has some.
    """

    def __init__(self, world: FleetWorld, scenario: Scenario, seed: int) -> None:
        self.counted: Counter[str] = Counter({fault.name: 0 for fault in scenario.faults})
        self._world = world
        for fault in scenario.faults:
            if fault.rate > 0.0:
                draw = random.Random(f"{seed} {fault.name}")
                self._next(fault, draw, DAY_S * 1000.0 / (fault.rate * len(world.cluster.all)))
        for given in scenario.happenings:
            world.after(given.at_s, partial(self._happens, given))

    def _next(self, fault: FaultRate, draw: random.Random, apart_s: float) -> None:
        self._world.after(draw.expovariate(1.0 / apart_s), partial(self._comes, fault, draw, apart_s))

    def _comes(self, fault: FaultRate, draw: random.Random, apart_s: float) -> None:
        place, infrastructure = draw.random(), draw.random() < fault.infrastructure
        self._next(fault, draw, apart_s)
        machine = self._world.cluster.all[int(place * len(self._world.cluster.all))]
        self._befall(fault, machine, infrastructure=infrastructure)

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
        if machine.away:
            return  # it is being repaired, and will be as good as new
        if machine.member is not None and self._world.has_ranks(machine.member):
            self.counted[fault.name] += 1
        if infrastructure:
            machine.defects[fault.name] = fault
            if machine.member is not None and not self._world.has_ranks(machine.member):
                self._world.break_spare(machine.member)
            if comes_again:
                self._world.after(fault.again.drawn(self._world.draw), partial(self._again, fault, machine))
        self._strike(fault, machine, infrastructure=infrastructure)

    def _again(self, fault: Fault, machine: Machine) -> None:
        """It shows once more, while the machine is not repaired."""
        if machine.defects.get(fault.name) is not fault:
            return
        self._world.after(fault.again.drawn(self._world.draw), partial(self._again, fault, machine))
        self._strike(fault, machine, infrastructure=True)

    def _strike(self, fault: Fault, machine: Machine, *, infrastructure: bool) -> None:
        world = self._world
        world.training.agree()
        if fault.symptom is Symptom.STORAGE_SLOW:  # it is of no machine
            slow_storage(world, fault)
            return
        hit = behind(world, machine, fault)
        names = [each.member for each in hit if each.member is not None and world.has_ranks(each.member)]
        if names:
            world.watch(names, BEFORE_S + WATCHED_S)
        world.after(BEFORE_S, partial(self._hits, fault, names, infrastructure=infrastructure))

    def _befall_member(self, fault: Fault, name: str, *, infrastructure: bool) -> None:
        """Its workers run, if it has ranks."""
        if self._world.has_ranks(name):
            self._world.watch((name,), BEFORE_S + WATCHED_S)
            self._world.after(BEFORE_S, partial(self._hits, fault, [name], infrastructure=infrastructure))

    def _hits(self, fault: Fault, names: list[str], *, infrastructure: bool) -> None:
        world = self._world
        for name in names:
            if not world.has_ranks(name):
                continue
            if fault.symptom in OF_WORKERS and not world.runs_workers(world.members[name]):
                again = partial(self._befall_member, fault, name, infrastructure=infrastructure)
                world.at_next_round((fault.name, name), again)
            else:
                world.machine_of(world.members[name]).shown |= infrastructure
                STRIKES[fault.symptom](world, world.members[name], fault, infrastructure=infrastructure)
