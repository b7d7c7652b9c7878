"""How far a signal walks through the code, from what brings it to what comes of it.

    make bench NAME=walks

Counted are the functions of Holdfast that are entered, by name, lambdas and comprehensions left out, and the files
they stand in. The watchdog's walks are those of a simulated job: the one call that ends in a new round or a new
plan. Beside each is what a tracer counted of the same walk before the code was put into its folders of today; half
of that is the aim.
"""

import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec
from figure import Figure, measured, publish

TESTS: Final = Path(__file__).parents[1] / "tests"
sys.path += [str(TESTS / "servers"), str(TESTS / "sim"), str(TESTS / "unit" / "operator")]

from operator_builders import NOW, OPTIONS, observed  # noqa: E402  from the tests' folders, on the path only now
from smallworld import SmallWorld  # noqa: E402
from vocabulary import flip_bit  # noqa: E402

from holdfast.api.event import JobSubmitted  # noqa: E402
from holdfast.api.policy import CorruptionPolicy  # noqa: E402
from holdfast.api.telemetry import XidRaised  # noqa: E402
from holdfast.operator.decide.action import CreatePod  # noqa: E402
from holdfast.operator.decide.reconcile import reconcile  # noqa: E402
from holdfast.watchdog.brain.step import Effect, Publish, Show  # noqa: E402
from holdfast.watchdog.job import Job  # noqa: E402

PRODUCT: Final = "/holdfast/"
# What wakes the watchdog's side of a job.
DOORS: Final = ("observe", "record", "elapse")
TRAINS_S: Final = 60.0
PATIENCE_S: Final = 120.0
SEED: Final = 3


@dataclass
class Walk:
    """What was entered: file and name of each function."""

    stations: set[tuple[str, str]] = field(default_factory=set)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count what is entered meanwhile, also in threads that begin meanwhile."""
        threading.setprofile(self._entered)
        sys.setprofile(self._entered)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @property
    def files(self) -> int:
        return len({file for file, _ in self.stations})

    def _entered(self, frame: FrameType, what: str, _: Any) -> None:
        code = frame.f_code
        if what == "call" and PRODUCT in code.co_filename and not code.co_name.startswith("<"):
            self.stations.add((code.co_filename, code.co_qualname))


class WatchedJob:
    """A job whose watchdog is traced: of each call the walk, and what came of it."""

    def __init__(self) -> None:
        self.world = SmallWorld(SEED, sound=True)
        self.found: Walk | None = None
        policy = msgspec.structs.replace(
            self.world.policy,
            nodes_min=1,
            nodes_max=2,
            spares=1,
            processes_per_node=1,
            tensor=1,
            preflight=None,
            memory=None,
            observe=False,
            corruption=CorruptionPolicy(fingerprint_every=4),
        )
        self.world.policy = policy
        self.world.carry_out(self.world.job.record(JobSubmitted(policy), self.world.now))
        self.world.follow_plan()
        self.world.run(TRAINS_S)

    def walk(self, cause: Callable[[SmallWorld], None], ends: Callable[[Effect], bool]) -> Walk:
        """The walk of the first call after `cause` that `ends` in what is waited for."""
        plain = {door: getattr(Job, door) for door in DOORS}
        try:
            for door, call in plain.items():
                setattr(Job, door, self._traced(call, ends))
            cause(self.world)
            give_up_at = self.world.now + PATIENCE_S
            while self.found is None:
                assert self.world.now < give_up_at, "nothing came of it"
                self.world.run(0.01)
        finally:
            for door, call in plain.items():
                setattr(Job, door, call)
        return self.found

    def _traced(self, call: Callable[..., tuple[Effect, ...]], ends: Callable[[Effect], bool]) -> Any:
        def traced(job: Job, *given: Any) -> tuple[Effect, ...]:
            walk = Walk()
            with walk.watched():
                effects = call(job, *given)
            if self.found is None and any(map(ends, effects)):
                self.found = walk
            return effects

        return traced


def exit_to_round() -> Walk:
    return WatchedJob().walk(lambda world: _training(world).kill_worker(0), _is_round)


def xid_to_eviction() -> Walk:
    def raise_xid(world: SmallWorld) -> None:
        member = _training(world)
        member.report((XidRaised(f"GPU-{member.name}", 79, 0.01),))

    return WatchedJob().walk(raise_xid, lambda effect: isinstance(effect, Publish))


def difference_to_rewind() -> Walk:
    return WatchedJob().walk(flip_bit, _is_round)


def step_to_commit() -> Walk:
    import torch

    from holdfast.checkpoint import Checkpointer, Standalone

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    walk = Walk()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        saved = Checkpointer(
            Standalone(), model=model, optimizer=optimizer, uri=Path(folder).as_uri(), every_steps=1
        )
        for step, batch in saved.steps([torch.ones(2)] * 3, until=3):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            if step == 1:  # the first one also makes what all share
                stack.enter_context(walk.watched())
        saved.close()
    return walk


def apply_to_pods() -> Walk:
    walk, seen = Walk(), observed(pods=())
    with walk.watched():
        outcome = reconcile(seen, OPTIONS, NOW)
    assert any(isinstance(action, CreatePod) for action in outcome.actions), outcome
    return walk


def _is_round(effect: Effect) -> bool:
    return isinstance(effect, Show)


def _training(world: SmallWorld) -> Any:
    return next(each for each in world.members.values() if each.round is not None)


# Of each walk, the functions and files it took before.
WALKS: Final[dict[str, tuple[Callable[[], Walk], int, int]]] = {
    "a worker's exit, heard by the watchdog, to the new round": (exit_to_round, 185, 46),
    "XID 79, reported to the watchdog, to the plan without its node": (xid_to_eviction, 210, 48),
    "replicas that differ, reported to the watchdog, to the round that goes back": (difference_to_rewind, 223, 48),
    "a step of one rank to its committed checkpoint, and the end": (step_to_commit, 134, 30),
    "a TrainingJob that the watchdog took, seen by the operator, to its pods": (apply_to_pods, 104, 19),
}


def main() -> None:
    """Run the bench."""
    figures: list[Figure] = []
    for what, (walk_of, functions, files) in WALKS.items():
        walk = walk_of()
        figures += [
            measured(f"functions from {what}", ours=[len(walk.stations)], other=[functions], unit="", target=0.5),
            measured(f"files from {what}", ours=[walk.files], other=[files], unit="", target=0.5),
        ]
    publish("walks", figures)


if __name__ == "__main__":
    main()
