"""Situations somebody is called about, in a job whose watchdog is real: the checks were made with these.

Each says the symptom, the check that names what was injected, and what may be called proved: what was injected,
and what truly follows from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from msgspec.structs import replace
from watchedjob import WatchedJob, a_manifest, sound_loss

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.policy import LossPolicy
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import (
    GpuHealth,
    GpuSample,
    NodeReport,
    NonFinite,
    ProcessKilledForMemory,
    ProcessState,
    RankSample,
    XidRaised,
)
from holdfast.console.runbook.known import Known
from holdfast.console.runbook.symptom import Symptom

GIB = 1 << 30


@dataclass(frozen=True)
class Situation:
    """`culprit` is the id of the check, `provable` further ids of what is certain in it."""

    says: str
    symptom: Symptom
    culprit: str
    play: Callable[[], WatchedJob]
    provable: frozenset[str] = frozenset()


@cache
def played(play: Callable[[], WatchedJob]) -> Known:
    """What is known at the end. A play takes half a second, so it is played once for all tests of a process."""
    return play().known()


def healthy() -> WatchedJob:
    return WatchedJob().train(400)


def a_higher_learning_rate() -> WatchedJob:
    """A worker dies, and the script that starts again has another learning rate."""
    job = WatchedJob().train(100)
    job.manifest = a_manifest(lr="0.003")
    job.die(3)
    job.train(20)
    job.loss = lambda step, rank: sound_loss(step, rank) + 3.0
    return job.train(60)


def a_silent_corruption() -> WatchedJob:
    """One rank's parameters are not those of the others, from one step on."""
    job = WatchedJob(nodes=4).train(95)
    job.wrong = {5}
    job.loss = lambda step, rank: sound_loss(step, rank) + 1.0
    return job.train(10)


def a_restart_at_the_wrong_sample() -> WatchedJob:
    """A worker dies, and the data are not given their state back."""
    job = WatchedJob().train(100)
    job.die(2)
    job.shift = -60
    return job.train(90)


def one_rank_apart() -> WatchedJob:
    """One rank has a shard of its own."""
    job = WatchedJob(loss=LossPolicy(rewind_after=20)).train(250)
    job.loss = lambda step, rank: sound_loss(step, rank) * (2.0 if rank == 6 else 1.0)
    return job.train(60)


def another_world() -> WatchedJob:
    """A machine is lost without a spare, and the job goes on with fewer ranks."""
    job = WatchedJob().train(100)
    job.lose("d")
    job.train(30)
    job.loss = lambda step, rank: sound_loss(step, rank) + 1.0
    return job.train(60)


def a_stopped_process() -> WatchedJob:
    """One worker is stopped; the others wait for it."""
    job = WatchedJob(hang_timeout_s=600.0).train(100)
    job.stands = True
    began = job.now

    def stopped(sample: RankSample) -> RankSample:
        told = standing(sample, job.now - began)
        if sample.rank != 3:
            return told
        return replace(told, process=ProcessState.STOPPED, pulse_age_s=job.now - began)

    job.sample = stopped
    return job.train(3)


def a_rank_stuck_in_its_data() -> WatchedJob:
    """One rank waits for a batch; the others wait for it in the collective. The detector has no time-out yet."""
    job = WatchedJob(hang_timeout_s=600.0).train(100)
    job.stands = True
    began = job.now

    def stuck(sample: RankSample) -> RankSample:
        told = standing(sample, job.now - began)
        return replace(told, phase=Phase.DATA) if sample.rank == 4 else told

    job.sample = stuck
    return job.train(70)


def all_in_their_checkpoint() -> WatchedJob:
    """Storage takes no more writes: all ranks stand in their save."""
    job = WatchedJob(hang_timeout_s=600.0).train(100)
    job.stands = True
    began = job.now
    job.sample = lambda sample: replace(standing(sample, job.now - began), phase=Phase.CHECKPOINT)
    return job.train(70)


def too_few_nodes() -> WatchedJob:
    """Two of four machines go, and the job needs three."""
    job = WatchedJob(nodes_min=3).train(100)
    job.lose("c")
    job.lose("d")
    return job.train(40)


def a_loader_that_is_slow() -> WatchedJob:
    """One rank waits for its own data loader; all others wait for it."""
    job = WatchedJob(nodes=4).train(150)
    job.work_s = lambda rank: (0.7, 0.5 if rank == 5 else 0.01)
    return job.train(120)


def a_hot_gpu() -> WatchedJob:
    """One GPU is beyond the limit at which it slows itself down."""
    job = WatchedJob().train(60)

    def gpu(node: str) -> GpuSample:
        margin_c = -1.0 if node == "b" else 25.0
        return GpuSample(f"GPU-{node}", 0, GpuHealth.HEALTHY, 60.0, margin_c=margin_c)

    job.gpu = gpu
    return job.train(100)


def a_script_that_fails() -> WatchedJob:
    """Every rank raises the same before its first step."""
    job = WatchedJob(nodes=2)
    for _ in range(3):
        job.stands = True
        job.train(4)
        for rank in range(4):
            error = "Traceback (most recent call last):\n  File train.py, line 7\nKeyError: 'lr'"
            job.die(rank, exit_code=1, signal=None, error=error, raised="KeyError: 'lr'", place="train.py:7")
        job.train(20)
        if job.job.state.ended_at is not None:
            break
    return job


def a_killed_worker() -> WatchedJob:
    """The kernel kills a worker, as the node's memory is used up."""
    job = WatchedJob().train(100)
    job.die(5)
    job.events("c", ProcessKilledForMemory(1005, "python", 0.01))
    return job.train(20)


def an_xid() -> WatchedJob:
    """A GPU falls off the bus."""
    job = WatchedJob().train(100)
    job.events("b", XidRaised("GPU-b", 79, 0.01, "GPU has fallen off the bus"))
    return job.train(30)


def a_batch_that_gives_a_nan() -> WatchedJob:
    """A step is NaN whenever it is trained."""
    job = WatchedJob().train(95)

    def nan(sample: RankSample) -> RankSample:
        if sample.step is None or sample.step < 110:
            return sample
        told = NonFinite(110, float(sample.step - 110), sample.step, sample.step - 109, "nan", "nan")
        return replace(sample, loss=float("nan"), grad_norm=float("nan"), nonfinite=told)

    job.sample = nan
    return job.train(90)


def a_full_disk() -> WatchedJob:
    """The disk for checkpoints is full, and no more are committed."""
    job = WatchedJob().train(100)
    job.saves = False
    began = job.now
    full = ConditionKind.DISK_FULL

    def report(told: NodeReport) -> NodeReport:
        if told.node != "a":
            return told
        says = f"{GIB} of {100 * GIB} bytes are free on /data"
        return replace(
            told, conditions=(Condition(full, ConditionState.RAISED, job.now - began, says, device="/data"),)
        )

    job.report = report
    return job.train(200)


def many_restarts() -> WatchedJob:
    """A worker dies each minute or so."""
    job = WatchedJob().train(60)
    for rank in (1, 4, 2, 7, 3):
        job.die(rank)
        job.train(80)
    return job


def standing(sample: RankSample, for_s: float) -> RankSample:
    return replace(sample, progress_age_s=for_s, phase_age_s=for_s)


SITUATIONS = (
    Situation(
        "a new learning rate after a restart",
        Symptom.LOSS_SPIKED,
        "learning-rate",
        a_higher_learning_rate,
    ),
    Situation("a silent corruption on one node", Symptom.LOSS_SPIKED, "corruption", a_silent_corruption),
    Situation("a restart at the wrong sample", Symptom.LOSS_SPIKED, "wrong-sample", a_restart_at_the_wrong_sample),
    Situation("a shard of one rank is bad", Symptom.LOSS_SPIKED, "rank-apart", one_rank_apart),
    Situation("the world shrank", Symptom.LOSS_SPIKED, "world-changed", another_world),
    Situation("one process is stopped", Symptom.HUNG, "stopped-process", a_stopped_process),
    Situation("one rank waits for its data", Symptom.HUNG, "absent-rank", a_rank_stuck_in_its_data),
    Situation("storage takes no writes", Symptom.HUNG, "in-checkpoint", all_in_their_checkpoint),
    Situation("two machines are gone", Symptom.HUNG, "member-lost", too_few_nodes, frozenset({"too-few-members"})),
    Situation("a slow loader on one rank", Symptom.SLOW, "slow-data", a_loader_that_is_slow),
    Situation("a hot GPU", Symptom.SLOW, "heat", a_hot_gpu),
    Situation(
        "the script raises on every rank",
        Symptom.WILL_NOT_START,
        "script-fails",
        a_script_that_fails,
    ),
    Situation(
        "the kernel killed a worker for memory",
        Symptom.OUT_OF_MEMORY,
        "killed-by-the-kernel",
        a_killed_worker,
    ),
    Situation("a GPU fell off the bus", Symptom.NODE_SUSPECT, "device", an_xid),
    Situation("a batch gives a NaN each time", Symptom.NAN, "nan-again", a_batch_that_gives_a_nan),
    Situation("the disk for checkpoints is full", Symptom.CHECKPOINT_STALE, "disk", a_full_disk),
    Situation("a worker dies each minute", Symptom.COST, "restarts", many_restarts),
)
