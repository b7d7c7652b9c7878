"""A run that waits costs next to nothing to live through, and what broke meanwhile breaks once."""

from collections.abc import Callable

from holdfast.api.policy import EvictionBudget, Policy
from holdfast.api.status import JobPhase
from holdfast.simulator.fault import Fault, Happening, Spread, Symptom
from holdfast.simulator.fleet.fleetworld import FleetWorld
from holdfast.simulator.fleet.hazards import Hazards
from holdfast.simulator.scenario import DAY_S, Fleet, Scenario, Times

NODES = 16
AGAIN_S = 60.0


class Counted(FleetWorld):
    """Counts how many things were to happen."""

    due = 0

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self.due += 1
        super().after(delay_s, what)


def waiting(days: float, evictions: EvictionBudget | None = None) -> tuple[Counted, int]:
    """A GPU is lost where no spare is, and somewhere else a worker crashes every minute while its workers run. How
    many things happen from the second hour on.
    """
    policy = Policy("sim/waits", NODES, NODES, checkpoint_uri="/ckpt", evictions=evictions or EvictionBudget())
    lost = Fault("lost", Symptom.GPU_LOST, repair=Spread(2.0 * days * DAY_S))
    crash = Fault("crash", Symptom.PROCESS_EXIT, again=Spread(AGAIN_S))
    given = [Happening(600.0, lost, 3)]
    given += [Happening(900.0 + AGAIN_S * each, crash, 5) for each in range(int(days * DAY_S / AGAIN_S))]
    times = Times(human=Spread(2.0 * days * DAY_S))
    world = Counted(Scenario(policy, Fleet(NODES), (), days, times=times, happenings=tuple(given)), 1)
    Hazards(world, world.scenario, 1)
    world.begin()
    world.run(3600.0)
    before = world.due
    world.run(days * DAY_S - 3600.0)
    return world, world.due - before


def test_a_job_without_spares_waits_for_a_repair_in_silence() -> None:
    world, happened = waiting(5.0)
    assert world.training.round is None
    assert happened < 4 * 5 * 24 * 60, "no more than what is drawn to happen each minute"


def test_so_does_one_that_has_failed_until_somebody_comes() -> None:
    world, happened = waiting(5.0, EvictionBudget(count=0))
    assert world.job.state.phase is JobPhase.FAILED
    assert happened < 4 * 5 * 24 * 60
