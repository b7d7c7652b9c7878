"""What is lived through: a policy, a fleet, what fails in it, how long recoveries take, and prices."""

from typing import Final

import msgspec

from holdfast.api.policy import Policy
from holdfast.simulator.fault import FaultRate, Happening, Spread

DAY_S: Final = 86_400.0


class Times(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long what the watchdog does not decide takes, in seconds.

    A phase of `nodes` takes `base + per_doubling * log2(nodes)`: what all take part in grows with the logarithm of
    their number (trees of connections), what each does alone does not grow. Together they come to about 40 s at
    2,048 nodes; beside it, 65 s were measured of a restart in place of 16,384 GPUs.

    Source: what a process takes, `reenter_s`: `make bench NAME=recovery` (0.07 to 0.11 s); the end of its
    communicators: https://nvidia.github.io/nvidia-resiliency-ext/inprocess/usage_guide.html (half a second); to
    meet: https://arxiv.org/abs/2402.15627 (30 s at more than 10,000 GPUs); the whole restart beside it:
    https://arxiv.org/abs/2509.16293 (table 7); `regroup_s`: `make bench NAME=recovery` (up to 0.2 steps of 0.1 s,
    four ranks). The others are assumptions: a run of one's own knows better. Replica groups meet in one store,
    which answers its clients one after the other: ten requests of each rank, 100,000 a second. They copy some
    10 GB a rank at 1 GB/s, by way of host memory.
    """

    stop_s: float = 0.5
    reenter_s: float = 0.1  # a worker that goes on in its process, until it is ready to meet the others
    start_s: float = 5.0  # one that starts warm: a fork takes 0.1 s, the rest is its device
    start_cold_s: float = 30.0  # one that imports everything
    join_s: float = 1.0  # all meet
    join_per_doubling_s: float = 2.7
    load_s: float = 120.0  # restore from storage
    load_memory_s: float = 2.0  # restore from a neighbour's memory
    first_step_s: float = 5.0  # beyond an ordinary step: compiles, connections that open late
    regroup_s: float = 0.2  # replica groups that go on, until they have met anew, and for 1,000 ranks of them
    regroup_per_1000_ranks_s: float = 0.1
    copy_s: float = 10.0  # a replica group that comes in copies its state from another
    provision: Spread = Spread(300.0, 0.5)  # a new node, where the cluster has one free
    save_stall_s: float = 0.5
    save_took_s: float = 40.0
    test_s: float = 20.0  # a light self-test
    inspect: Spread = Spread(3600.0, 1.0)  # an innocent machine that was taken out, until it is idle again
    human: Spread = Spread(1800.0, 1.0)  # a page, until somebody has the job go on


class Fleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machines. `nodes` and `spares` are of the job; `free` more are in the cluster, for whoever asks.

    Racks and leaf switches hold so many nodes each. `gpu_hour` is a price, None: not asked for.
    """

    nodes: int
    gpus_per_node: int = 8
    spares: int = 0
    free: int = 0
    rack: int = 4
    switch: int = 32
    gpu_hour: float | None = None

    @property
    def gpus(self) -> int:
        """Those that have ranks while no node is missing."""
        return self.nodes * self.gpus_per_node


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run to live through, `days` long. `step_s` is what a step takes when nothing is wrong.

    `faults` are drawn, `happenings` are given. After every `script_saves` steps the script saves by itself,
    whatever the policy wants; 0: it does not. `tests_find` is the share of self-tests of a broken device that
    find it so.
    Source: 0.7, https://arxiv.org/abs/2509.16293 (section 5)
    """

    policy: Policy
    fleet: Fleet
    faults: tuple[FaultRate, ...]
    days: float
    step_s: float = 10.0
    times: Times = Times()
    tests_find: float = 0.7
    happenings: tuple[Happening, ...] = ()
    script_saves: int = 0
