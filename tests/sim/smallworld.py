"""Small jobs for random schedules: a policy drawn from a seed, every step made, everybody in sight, every promise
checked after everything that happens.
"""

import random

from forgetful_store import MemoryStore
from invariants import Invariants
from msgspec.structs import replace

from holdfast.api.policy import (
    CheckpointInterval,
    CorruptionPolicy,
    EvictionBudget,
    GpuHour,
    LinkPolicy,
    MemoryPolicy,
    Policy,
    RestartBudget,
    SlowAction,
    StragglerPolicy,
    ThermalPolicy,
)
from holdfast.api.selftest import TestLevel
from holdfast.simulator.world.cluster import Cluster
from holdfast.simulator.world.steps import StepByStep
from holdfast.simulator.world.tempo import Tempo
from holdfast.simulator.world.training import Place
from holdfast.simulator.world.world import World
from holdfast.watchdog.senses import senses_for

JOB = "sim/run"
OBSERVED_SHARE = 0.15
LINKS_SHARE = 0.25
LINKS = LinkPolicy(flow_s=0.5, gang_s=0.5, timeout_s=20.0)


class SmallWorld(World):
    """One schedule's."""

    training: StepByStep
    store: MemoryStore

    def __init__(self, seed: int, *, sound: bool = False, in_groups: bool = False) -> None:
        """`sound`: every device passes its self-tests. `in_groups`: the job has replica groups."""
        self.seed, self.sound, self.invariants = seed, sound, Invariants(self)
        draw = random.Random(seed)
        policy = drawn_policy(draw, seed, sound=sound)
        policy = grouped(policy, draw) if in_groups else policy
        fits = sound or policy.tensor == 1
        cluster = Cluster(misfits=0 if fits else draw.choice((0, 0, 1)))
        super().__init__(
            policy,
            MemoryStore(),
            senses_for=senses_for,
            cluster=cluster,
            tempo=Tempo(draw),
            witness=self.invariants,
        )
        self.begin()

    def _training(self, place: Place) -> StepByStep:
        return StepByStep(place, self.draw.choice((0.2, 0.5)))


def drawn_policy(draw: random.Random, seed: int, *, sound: bool) -> Policy:
    """What a job may ask for."""
    nodes_max = draw.randint(1, 4)
    preflight = draw.choice((None, None, None, TestLevel.LIGHT))
    return Policy(
        job=JOB,
        nodes_min=draw.randint(1, nodes_max),
        nodes_max=nodes_max,
        spares=draw.randint(0, 2),
        processes_per_node=draw.choice((1, 1, 2)),
        heartbeat_interval_s=1.0,
        lost_after_s=3.0,
        startup_timeout_s=20.0,
        form_grace_s=5.0,
        checkpoint_uri="/ckpt",
        gpu_hour=GpuHour(2.5, "EUR"),
        evictions=EvictionBudget(count=draw.randint(1, 4), fraction=draw.choice((0.05, 1.0))),
        restarts=RestartBudget(backoff_s=draw.choice((1.0, 10.0))),
        preflight=preflight,
        links=LINKS if random.Random(f"links of {seed}").random() < LINKS_SHARE else None,
        tensor=1 if preflight is None else draw.choice((1, 2)),
        thermal=ThermalPolicy(sustained_s=draw.choice((10.0, 20.0))),
        memory=draw.choice((None, MemoryPolicy(), MemoryPolicy(replicas=2))),
        interval=draw.choice((None, CheckpointInterval(), CheckpointInterval(steps=7))),
        corruption=CorruptionPolicy(fingerprint_every=draw.choice((0, 4)), self_test_every_s=20.0),
        observe=not sound and draw.random() < OBSERVED_SHARE,
        straggler=StragglerPolicy(action=draw.choice(tuple(SlowAction))),
    )


def grouped(policy: Policy, draw: random.Random) -> Policy:
    """The same of two to four replica groups; a job with groups acts, and keeps nothing in memory."""
    size, most = draw.choice((1, 2, 2)), draw.randint(2, 4)
    return replace(
        policy,
        nodes_min=size * draw.randint(1, most),
        nodes_max=size * most,
        replica_nodes=size,
        memory=None,
        observe=False,
        tensor=1,
    )
