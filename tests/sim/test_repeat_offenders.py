"""Machines that fail again and again, too seldom for an hour to show it: the brain remembers them for a week."""

from closedforms import NODES

from holdfast.api.policy import CheckpointInterval, EvictionBudget, Policy, RestartBudget
from holdfast.simulator.fault import FaultRate, Happening, Spread, Symptom
from holdfast.simulator.live import live
from holdfast.simulator.outcome import Outcome
from holdfast.simulator.scenario import Fleet, Scenario

FLEET = 8 * NODES
HOUR_S = 3600.0
SIGSEGV = 11


def lived(days: float, *faults: FaultRate, bad: tuple[int, ...] = (), seed: int = 1) -> Outcome:
    """Machines of these numbers go bad in the first hours: then a worker crashes there every five hours, and no
    self-test finds why.
    """
    crash = FaultRate("bad", Symptom.PROCESS_EXIT, rate=0.0, again=Spread(5 * HOUR_S), code=SIGSEGV)
    policy = Policy(
        "sim/offenders",
        FLEET,
        FLEET,
        spares=4,
        checkpoint_uri="/ckpt",
        interval=CheckpointInterval(seconds=600.0),
        restarts=RestartBudget(count=10**6),
        evictions=EvictionBudget(count=10**6, fraction=1.0),
    )
    times = range(int(days * 24 / 5))
    given = [Happening(HOUR_S * (1 + 5 * time) + 100.0 * node, crash, node) for node in bad for time in times]
    scenario = Scenario(policy, Fleet(FLEET, spares=4), faults, days, tests_find=0.0, happenings=tuple(given))
    return live(scenario, seed)


def test_machines_that_crash_every_five_hours_are_out_within_a_day() -> None:
    outcome = lived(2.0, bad=(5, 17, 40))
    assert (outcome.right, outcome.wrong, outcome.pages) == (3, 0, 0)
    assert outcome.faults["bad"] <= 3 * 5


def test_a_script_that_crashes_twenty_times_a_day_anywhere_evicts_nobody() -> None:
    often = FaultRate("script", Symptom.PROCESS_EXIT, infrastructure=0.0, rate=20_000.0 / FLEET, code=SIGSEGV)
    outcome = lived(5.0, often)
    assert outcome.faults["script"] > 70
    assert (outcome.right, outcome.wrong) == (0, 0)
