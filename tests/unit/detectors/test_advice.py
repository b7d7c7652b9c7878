"""What an incident's page advises is done to the letter, and holds."""

import re
from typing import Any

import pytest
from hangworld import World
from signals import JOB

from holdfast.api.rankrecord import Phase
from holdfast.api.trainingjob import policy_of, read_trainingjob
from holdfast.trainer import Assignment, Run
from holdfast.trainer import Phase as PhaseOfScripts
from holdfast.watchdog.brain.longwork import ADVICE
from holdfast.watchdog.detectors.hang import HangDetector

LINE, FIELD = re.findall(r"`([^`]+)`", ADVICE)
LONG_S = 1500.0


def phase_within(line: str) -> Phase:
    """Where a rank says it is, in a script that has the line around its work."""
    seen: list[Phase] = []

    def train(_: Assignment) -> None:
        run.step(1, loss=1.0)
        script = f"{line}\n    seen.append(run._record.current_phase)"
        exec(script, {"run": run, "Phase": PhaseOfScripts, "seen": seen})

    run = Run(environment={})
    run.enter(train)
    return seen[0]


def with_field(path: str, value: str) -> HangDetector:
    """Of a job whose spec has that field."""
    spec: dict[str, Any] = {"entrypoint": ["train.py"]}
    *parents, last = path.split(".")
    inner = spec
    for name in parents:
        inner = inner.setdefault(name, {})
    inner[last] = value
    metadata = {"name": JOB.rpartition("/")[2], "namespace": JOB.rpartition("/")[0] or "default"}
    document = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": metadata,
        "spec": spec,
    }
    return HangDetector(policy_of(read_trainingjob(document)))


def works_long(world: World, phase: Phase, *, works: float, beats: bool) -> World:
    world.trains(50)
    world.all_wait_but(1)
    world.ranks[1].phase, world.ranks[1].works, world.ranks[1].beats = phase, works, beats
    return world.passes(LONG_S)


@pytest.mark.parametrize(("works", "beats"), [(1.0, True), (1.0, False), (0.0, True)])
def test_the_line_that_it_says_to_write_gives_all_the_time_there_is(works: float, beats: bool) -> None:
    assert not works_long(World(), phase_within(LINE), works=works, beats=beats).found


@pytest.mark.parametrize("phase", [Phase.OWN, Phase.DATA, Phase.FORWARD, Phase.CHECKPOINT, Phase.IDLE])
@pytest.mark.parametrize(("works", "beats"), [(1.0, True), (1.0, False), (0.0, True), (0.0, False)])
def test_the_field_that_it_says_to_set_gives_so_much(phase: Phase, works: float, beats: bool) -> None:
    world = World(with_field(FIELD, "30m"))
    assert not works_long(world, phase, works=works, beats=beats).found
