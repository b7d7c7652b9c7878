"""Live through one run of a scenario: the real brain and detectors, in virtual time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.simulator.fleet.fleetworld import FleetWorld
from holdfast.simulator.fleet.hazards import Hazards
from holdfast.simulator.outcome import Outcome
from holdfast.simulator.scenario import DAY_S, Scenario
from holdfast.simulator.world.agenda import BEGINS_AT

# Of virtual time. Looking for cycles among a million objects takes as long as all else, and there are hardly any.
COLLECTED_S: Final = 2.0 * DAY_S


@contextmanager
def _uncollected() -> Iterator[None]:
    """Nobody looks for cycles of garbage meanwhile, unless asked to."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def live(scenario: Scenario, seed: int) -> Outcome:
    """What became of the run. The same scenario and seed have the same outcome."""
    world = FleetWorld(scenario, seed)
    hazards = Hazards(world, scenario, seed)
    with _uncollected():
        world.begin()
        while world.now < BEGINS_AT + scenario.days * DAY_S:
            world.run(min(COLLECTED_S, BEGINS_AT + scenario.days * DAY_S - world.now))
            gc.collect()
    world.training.advance()
    world.books.turn(world.books.phase, world.now)
    books = world.books
    return Outcome(
        seed=seed,
        elapsed_s=world.now - books.began_at,
        trained_s=books.trained_s,
        full_s=books.full_s,
        lost_s=books.lost_s,
        faults=dict(hazards.counted),
        right=world.right,
        wrong=world.wrongly,
        missed=sum(machine.shown and not machine.away for machine in world.cluster.all),
        spares_used=world.spares_used,
        pages=world.pages,
        rounds=world.rounds,
        recoveries_s=tuple(books.recoveries_s),
        ended="" if world.job.state.ended_at is None or world.is_paged else world.job.state.reason,
    )
