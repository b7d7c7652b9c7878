"""Small jobs whose starts take as long as they do on clusters, each time another time: storage that is slow for
all or for one node, caches that are cold on a new node, first steps that compile.

How long is assumed: imports of seconds to a minute, up to six times as long for everybody, or three times for one.
"""

import random

from forgetful_store import MemoryStore

from holdfast.api.event import FindingMade
from holdfast.api.finding import Finding, FindingKind
from holdfast.api.policy import Policy, RestartBudget
from holdfast.api.round import Round
from holdfast.simulator.world.cluster import Cluster
from holdfast.simulator.world.member import Worker
from holdfast.simulator.world.steps import StepByStep
from holdfast.simulator.world.tempo import Tempo
from holdfast.simulator.world.training import Place
from holdfast.simulator.world.world import World
from holdfast.watchdog import brain
from holdfast.watchdog.journal.replay import walk
from holdfast.watchdog.senses import senses_for

JOB = "sim/starts"
STARTUP_S = 600.0
SLOW_SHARE = 0.3


class Starts(Tempo):
    """What one job's starts take."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(draw)
        self._cold_s, self._warm_s = draw.uniform(10.0, 60.0), draw.choice((0.2, 2.0, 10.0))
        self._compiles_s = draw.choice((0.0, 10.0, 45.0))
        self._slow: dict[int, float] = {}  # by round, for everybody

    def enter_s(self, round: Round, *, starts: bool = False, is_new: bool = False) -> float:
        usual_s = self._cold_s if is_new else self._warm_s if starts else 0.2
        is_slow = self.draw.random() < SLOW_SHARE
        slow = self._slow.setdefault(round.number, self.draw.uniform(1.0, 6.0) if is_slow else 1.0)
        alone = self.draw.choice((1.0, 1.0, 1.0, self.draw.uniform(1.0, 3.0)))
        return usual_s * (slow if slow > 1.0 else alone)

    def first_step_s(self) -> float:
        return self._compiles_s * self.draw.uniform(0.8, 2.0)

    def door_s(self, members: int) -> float:
        return 1.0 + self.first_step_s()


class StartsWorld(World):
    """One seed's, with spares and without any other limit; in `groups` of so many nodes."""

    training: StepByStep

    def __init__(self, seed: int, *, group: int = 0) -> None:
        draw = random.Random(seed)
        nodes = 2 * group if group else draw.randint(2, 4)
        policy = Policy(
            job=JOB,
            nodes_min=group or nodes,
            nodes_max=nodes,
            spares=1,
            lost_after_s=3.0,
            startup_timeout_s=STARTUP_S,
            checkpoint_uri="/ckpt",
            restarts=RestartBudget(backoff_s=1.0),
            replica_nodes=group,
        )
        super().__init__(policy, MemoryStore(), senses_for=senses_for, cluster=Cluster(), tempo=Starts(draw))
        self.begin()

    def _training(self, place: Place) -> StepByStep:
        return StepByStep(place, 0.5)

    def run_until_all_train(self, within_s: float) -> float | None:
        """Seconds until all that are to be train; None: not within that time."""
        began = self.now
        while self.now < began + within_s:
            self.run(1.0)
            round_ = self.job.state.round
            if round_ is None or round_.training < self.policy.nodes_max:
                continue
            members = self.training.members_of(round_)
            if members is not None and all(each.step is not None for each in members):
                return self.now - began
        return None

    def strike(self) -> None:
        """A fault that a new round heals: a worker dies, a node is lost, or a launcher starts anew."""
        round_ = self.job.state.round
        assert round_ is not None
        member = self.members[self.draw.choice(round_.ranks).member]
        how = self.draw.random()
        if how < 0.6:
            member.kill_worker(0)
        elif how < 0.8:
            self.remove_node(member, "power")
        else:
            member.restart_launcher()

    def hangs(self) -> list[Finding]:
        """All that were found."""
        lines = (each.line.event for each in walk(self.store, self.job.name, brain=brain))
        findings = [each.finding for each in lines if isinstance(each, FindingMade)]
        return [each for each in findings if each.kind is FindingKind.HANG]


def hang_next(world: StartsWorld, name: str, how: Worker) -> None:
    """A worker of the member hangs before it enters its next round."""
    world.members[name].hangs_next = how
