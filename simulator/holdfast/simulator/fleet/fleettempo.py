"""How long things take in a fleet of many nodes, by the scenario's times."""

import math
import random

from holdfast.api.round import Entry, Round, Tier
from holdfast.simulator.scenario import Times
from holdfast.simulator.world.tempo import Tempo


class FleetTempo(Tempo):
    """Drawn around the times that a scenario gives. `storage` is how many times longer storage takes now."""

    replacement_s = 1.0

    def __init__(self, draw: random.Random, times: Times) -> None:
        super().__init__(draw)
        self._times = times
        self.storage: dict[object, float] = {}

    def provision_s(self) -> float:
        return self._times.provision.drawn(self.draw)

    def warm_s(self) -> float:
        return self._times.start_cold_s

    def enter_s(self, round: Round, *, starts: bool = False, is_new: bool = False) -> float:
        starts = starts or round.entry is Entry.RESPAWN or bool(round.fresh_ranks)
        return self._times.stop_s + (self._times.start_s if starts else self._times.reenter_s)

    def meet_s(self, members: int) -> float:
        """All of a round, until they have met."""
        return self._times.join_s + self._times.join_per_doubling_s * math.log2(max(1, members))

    def door_s(self, members: int) -> float:
        return self.meet_s(members) + self._times.first_step_s

    def regroup_s(self, round: Round) -> float:
        return self._times.regroup_s + self._times.regroup_per_1000_ranks_s * round.training_size / 1000.0

    def state_s(self) -> float:
        return self._times.copy_s

    def load_s(self, tier: Tier) -> float:
        """All of a round, until they have restored."""
        return self._times.load_memory_s if tier is Tier.MEMORY else self._times.load_s * self._storage()

    def first_step_s(self) -> float:
        """What the first step of a round takes beyond any other."""
        return self._times.first_step_s

    def save_stall_s(self) -> float:
        """For how long training stands still for a checkpoint."""
        return self._times.save_stall_s

    def commit_s(self) -> float:
        return self._times.save_took_s * self._storage()

    def test_s(self) -> float:
        return self._times.test_s

    def _storage(self) -> float:
        return max(self.storage.values(), default=1.0)
