"""What must hold after everything that happens, whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.api.finding import Confidence, FindingKind
from holdfast.api.incident import IncidentState
from holdfast.api.plan import Plan
from holdfast.api.round import Desired, Round
from holdfast.api.status import JobPhase
from holdfast.watchdog import brain
from holdfast.watchdog.turn import FAILED_RULE, turn

if TYPE_CHECKING:
    from nodememory import Image
    from world import World


class Broken(AssertionError):
    """A promise was broken; carries what is needed to see it again."""


class Invariants:
    """Checked by the world after every event."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._newest = 0
        self._commits_seen = 0
        self._newest_commit_round = 0

    def require(self, holds: bool, says: str) -> None:
        if not holds:
            story = "\n".join(self.world.log[-40:])
            raise Broken(f"seed {self.world.seed} at {self.world.now:.3f}: {says}\n{story}")

    def shown(self, desired: Desired) -> None:
        """Desired states only grow; a round's members are distinct, and none is on an avoided node."""
        self.require(desired.number > self._newest, f"{desired.number} was shown after {self._newest}")
        self._newest = desired.number
        if isinstance(desired, Round):
            members = [share.member for share in desired.ranks]
            self.require(len(set(members)) == len(members), "a member holds two places")
            avoided = {order.node for order in self.world.job.state.avoided}
            self.require(
                not avoided & {share.node for share in desired.ranks}, "a round was put on an avoided node"
            )
            self.require(self.world.policy.world_sizes_allow(len(members)), "the world size is not legal")

    def planned(self, plan: Plan) -> None:
        """Nobody whose ranks train is given up."""
        state = self.world.job.state
        if state.phase is not JobPhase.RUNNING:
            return
        given_up = set(plan.release) & state.ranked()
        self.require(not given_up, f"{sorted(given_up)} were released while they train")
        self.require(plan.members > 0, "a job that trains was given up")

    def remembered(self, images: tuple[Image, ...]) -> None:
        """What a rewind gave up is not restored from memory."""
        rewound_by = self.world.training.rewound_by
        old = min(image.round for image in images)
        self.require(
            old >= rewound_by, f"a snapshot of round {old} was restored after round {rewound_by} went back"
        )

    def check(self) -> None:
        self._at_most_one_round_trains()
        self._fenced_rounds_never_commit()
        self._evictions_stay_within_budget()

    def _at_most_one_round_trains(self) -> None:
        """Once a newer round has begun to step, no older one does (its members left it, or lack members)."""
        rounds = [number for _, number in self.world.training.stepped]
        self.require(rounds == sorted(rounds), f"rounds stepped out of order: {rounds}")

    def _fenced_rounds_never_commit(self) -> None:
        for number, step in self.world.disk.commits[self._commits_seen :]:
            says = f"round {number} committed step {step} after round {self._newest_commit_round} had"
            self.require(number >= self._newest_commit_round, says)
            self._newest_commit_round = number
        self._commits_seen = len(self.world.disk.commits)
        current = self.world.job.state.round
        for checkpoint in self.world.job.state.checkpoints:
            on_disk = (checkpoint.round, checkpoint.step) in self.world.disk.known
            self.require(on_disk, "a checkpoint is on record and not on disk")
            self.require(current is not None and checkpoint.round <= current.number, "a checkpoint of the future")

    def _evictions_stay_within_budget(self) -> None:
        budget = self.world.policy.evictions
        recent = [at for at in self.world.job.state.evictions if at > self.world.now - budget.per_s]
        self.require(len(recent) <= budget.count, f"{len(recent)} evictions, budget {budget.count}")

    def replay_equals_live(self) -> None:
        """The journal alone gives the state, byte for byte; no event made the brain fail."""
        job = self.world.job
        state = brain.initial(job.name)
        for line in self.world.store.tail(job.name, 0):
            step = turn(brain, state, line.event, line.at)
            self.require(step.reason.rule != FAILED_RULE, step.reason.says)
            state = step.state
        self.require(job.senses is None or not job.senses.failures.total(), "a detector failed")
        same = msgspec.msgpack.encode(state) == msgspec.msgpack.encode(job.state)
        self.require(same, "the journal gives another state than the live one")

    def settled(self) -> None:
        """After a quiet time: every incident ended, and the job trains, is over, or has been paged."""
        state = self.world.job.state
        for incident in state.incidents:
            ended = incident.state in (IncidentState.RECOVERED, IncidentState.PAGED)
            self.require(ended, f"{incident.id} ({incident.kind.value}) is {incident.state.value}: {state.reason}")
            self.require(
                bool(incident.evidence and incident.cause and incident.timeline), f"{incident.id} explains nothing"
            )
        proved = (each for each in state.incidents if each.confidence is Confidence.CERTAIN)
        blamed = {each.culprit.node for each in proved if each.kind is FindingKind.CORRUPTION}
        innocent = blamed - self.world.training.ever_wrong
        self.require(not innocent, f"{innocent} blamed for what they did not do")
        over = state.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED)
        if not over:
            self.require(state.phase is JobPhase.RUNNING, f"phase {state.phase.value}: {state.reason}")
            newest = self.world.training.stepped[-1]
            self.require(self.world.now - newest[0] < 3.0, f"no step since {newest[0]:.3f}: {state.reason}")
        self.replay_equals_live()
