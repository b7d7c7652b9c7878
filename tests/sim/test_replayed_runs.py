"""A run of the simulator itself, lived through again from its journal alone, comes out as it was."""

from collections.abc import Iterator, Sequence

import pytest

from holdfast.api.event import Event, Journaled
from holdfast.api.policy import CheckpointInterval, EvictionBudget, MemoryPolicy, Policy, RestartBudget
from holdfast.simulator.comparison import Side
from holdfast.simulator.fault import FaultRate, Spread, Symptom
from holdfast.simulator.fleet import fleetworld
from holdfast.simulator.fleet.forgetful import Forgetful
from holdfast.simulator.live import live
from holdfast.simulator.recorded import recorded
from holdfast.simulator.replayed import replayed
from holdfast.simulator.scenario import Fleet, Scenario
from holdfast.watchdog import brain
from holdfast.watchdog.brain.step import turn
from holdfast.watchdog.journal.replay import Replayed
from holdfast.watchdog.store.store import Fence

NODES = 8
JOB = "sim/journal"
DAYS = 2.0


class Kept(Forgetful):
    """A journal that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Journaled] = []

    def append(
        self, job: str, events: Sequence[Event], *, at: float, after: int, fence: Fence
    ) -> tuple[Journaled, ...]:
        lines = super().append(job, events, at=at, after=after, fence=fence)
        self.lines += lines
        return lines

    def replayed(self) -> Iterator[Replayed]:
        """As a walk over it gives it."""
        state = brain.initial(JOB)
        for line in self.lines:
            step = turn(brain, state, line.event, line.at)
            state = step.state
            yield Replayed(line, step.effects, step.reason, state)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_journal_alone_brings_about_what_was(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are lost while there are too few, two more of the cluster, and workers that die."""
    policy = Policy(
        JOB,
        NODES - 1,
        NODES,
        spares=1,
        processes_per_node=8,
        checkpoint_uri="/ckpt",
        memory=MemoryPolicy(),
        interval=CheckpointInterval(),
        restarts=RestartBudget(count=1000),
        evictions=EvictionBudget(count=1000, fraction=1.0),
    )
    faults = (
        FaultRate("lost", Symptom.NODE_LOST, rate=1000.0, repair=Spread(7200.0)),
        FaultRate("fell off the bus", Symptom.GPU_LOST, rate=1000.0, repair=Spread(7200.0)),
        FaultRate("died", Symptom.PROCESS_EXIT, infrastructure=0.0, rate=1000.0),
    )
    kept = Kept()
    monkeypatch.setattr(fleetworld, "Forgetful", lambda: kept)
    fleet = Fleet(NODES, spares=1, free=2)
    truth = live(Scenario(policy, fleet, faults, DAYS), seed)
    monkeypatch.undo()
    run = recorded(kept.replayed())
    assert (run.nodes, run.left_out) == (NODES + 3, {})
    told = run.really.trained_s / run.really.elapsed_s
    assert told == pytest.approx(truth.ettr, abs=0.01)
    scenario = run.scenario(run.policy)
    found = replayed(run, Side("as it was", scenario, [live(scenario, 1), live(scenario, 2)]), None, "ettr")
    assert found.error < 0.02
    figures = {each.name: each for each in found.reproduced}
    assert figures["rounds"].simulated.mean == pytest.approx(figures["rounds"].really, rel=0.15)
