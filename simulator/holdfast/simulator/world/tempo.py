"""How long it takes what the watchdog does not decide: messages, starts, saves. Seconds."""

import random

from holdfast.api.round import Round


class Tempo:
    """As processes on one machine are, each time drawn anew from `draw`."""

    replacement_s = 2.0  # from a node that went until the cluster looks whether one is missing

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def message_s(self) -> float:
        """A message on its way over one connection."""
        return self.draw.uniform(0.0005, 0.02)

    def provision_s(self) -> float:
        """A new pod, until its launcher runs."""
        return self.draw.uniform(0.05, 1.0)

    def warm_s(self) -> float:
        """A launcher's parent of workers, until it has imported everything."""
        return self.draw.uniform(1.0, 3.0)

    def reconnect_s(self) -> float:
        """A launcher whose connection broke, until it tries again."""
        return self.draw.uniform(0.05, 0.3)

    def enter_s(self, round: Round, *, starts: bool = False, is_new: bool = False) -> float:
        """A member that was shown the round, until its workers run; `starts`: some of them are new ones; `is_new`:
        none ran on its node before.
        """
        return self.draw.uniform(0.02, 0.3)

    def first_step_s(self) -> float:
        """What the first step of a round takes beyond any other."""
        return 0.0

    def door_s(self, members: int) -> float:
        """A replica group of so many whose workers run, until it waits for the others at the end of a step."""
        return self.draw.uniform(0.2, 1.0)

    def regroup_s(self, round: Round) -> float:
        """All replica groups that train, until they have met anew."""
        return self.draw.uniform(0.01, 0.1)

    def state_s(self) -> float:
        """The state of a replica group, until those that come in have copied it."""
        return self.draw.uniform(0.05, 0.5)

    def noticed_s(self) -> float:
        """A pod or node that is gone, until the operator says so."""
        return self.draw.uniform(0.2, 1.0)

    def commit_s(self) -> float:
        """A checkpoint, until it is committed."""
        return self.draw.uniform(0.01, 0.4)

    def copy_s(self) -> float:
        """A snapshot, until its copy is whole on another node."""
        return self.draw.uniform(0.01, 0.3)

    def test_s(self) -> float:
        """A self-test."""
        return self.draw.uniform(0.2, 2.0)
