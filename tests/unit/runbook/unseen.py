"""Further situations, written once the table of checks stood, to see how it does where nobody looked before.

At first sight the culprit was the first suspect in 13 of these 15: a pod that was pending and a node that was cut
off came after the members that were missed for it. Since then what follows from something else comes after that.
"""

from msgspec.structs import replace
from situations import Situation, standing
from watchedjob import JOB, WatchedJob

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.event import InterventionRequested, PodChanged
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.plan import PodState
from holdfast.api.telemetry import NodeReport, NonFinite, RankSample, SkippedSteps
from holdfast.console.runbook.symptom import Symptom


def a_gpu_out_of_memory() -> WatchedJob:
    """A longer batch than a GPU can hold, on every rank."""
    job = WatchedJob(nodes=2).train(60)
    says = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    for rank in range(4):
        job.die(rank, exit_code=1, signal=None, error=says, raised=says, place="train.py:40")
    return job.train(20)


def a_pod_at_its_limit() -> WatchedJob:
    """The kernel kills a worker, as its pod has reached a limit of its own."""
    job = WatchedJob().train(100)
    job.die(5, own_limit=True)
    return job.train(20)


def a_link_that_is_down() -> WatchedJob:
    """A port of one node is down, and all ranks wait in their collective."""
    job = WatchedJob(hang_timeout_s=600.0).train(100)
    job.stands = True
    began = job.now
    job.sample = lambda sample: standing(sample, job.now - began)

    def report(told: NodeReport) -> NodeReport:
        if told.node != "c":
            return told
        down = Condition(
            ConditionKind.LINK_DOWN, ConditionState.RAISED, job.now - began, "port 1 is down", "", "mlx5_0"
        )
        return replace(told, conditions=(down,))

    job.report = report
    return job.train(3)


def a_paused_job() -> WatchedJob:
    """Somebody paused it and said nothing."""
    job = WatchedJob().train(100)
    asked = InterventionRequest("i1", JOB, InterventionAction.PAUSE, "a look at the data")
    job.tell(InterventionRequested(asked))
    return job.train(60)


def all_are_slow() -> WatchedJob:
    """Every rank reads more slowly."""
    job = WatchedJob().train(250)
    job.work_s = lambda rank: (1.1, 0.01)
    return job.train(200)


def a_slow_machine() -> WatchedJob:
    """One rank computes more slowly than its peers."""
    job = WatchedJob().train(150)
    job.work_s = lambda rank: (1.1 if rank == 5 else 0.7, 0.01)
    return job.train(120)


def a_nan_of_one_rank() -> WatchedJob:
    """A machine computes a NaN once: the loss of one rank, then of all."""
    job = WatchedJob().train(95)
    bad = job.round.number

    def nan(sample: RankSample) -> RankSample:
        if sample.round != bad or sample.step is None:
            return sample
        step = 100 if sample.rank == 3 else 101
        if sample.step < step:
            return sample
        told = NonFinite(step, float(sample.step - step), sample.step, sample.step - step + 1, "nan", "nan")
        return replace(sample, loss=float("nan"), nonfinite=told)

    job.sample = nan
    return job.train(30)


def somebody_rewound_it() -> WatchedJob:
    """Somebody sent it back, and did not say so."""
    job = WatchedJob().train(200)
    asked = InterventionRequest("i1", JOB, InterventionAction.REWIND, "try again", to_step=60)
    job.tell(InterventionRequested(asked))
    return job.train(30)


def a_node_that_kills_its_workers() -> WatchedJob:
    """The workers of one node die again and again."""
    job = WatchedJob().train(60)
    for rank in (2, 3, 2):
        job.die(rank)
        job.train(60)
    return job


def nothing_is_saved() -> WatchedJob:
    """The script never saves."""
    job = WatchedJob()
    job.saves = False
    return job.train(400)


def a_standstill() -> WatchedJob:
    """The job hangs, and so its newest checkpoint gets old."""
    job = WatchedJob(hang_timeout_s=6000.0).train(100)
    job.stands = True
    began = job.now
    job.sample = lambda sample: standing(sample, job.now - began)
    return job.train(200)


def no_room_in_the_cluster() -> WatchedJob:
    """The cluster has no GPUs for the second node."""
    job = WatchedJob(nodes=1, nodes_min=2, nodes_max=2)
    job.tell(PodChanged("b", "", PodState.PENDING, "Insufficient nvidia.com/gpu"))
    return job.train(120)


def a_loader_that_costs() -> WatchedJob:
    """One slow loader, for hours."""
    job = WatchedJob().train(150)
    job.work_s = lambda rank: (0.7, 0.9 if rank == 5 else 0.01)
    return job.train(1200)


def a_node_nobody_hears() -> WatchedJob:
    """A node is cut off: its launcher and its agent say nothing any more."""
    job = WatchedJob(nodes_min=4).train(100)
    job.gone.add("c")
    return job.train(40)


def steps_that_are_left_out() -> WatchedJob:
    """Half precision overflows: all ranks leave steps out."""
    job = WatchedJob().train(100)

    def skipped(sample: RankSample) -> RankSample:
        return replace(sample, skipped=SkippedSteps(sample.step or 0, (sample.step or 0) // 2, "", "inf"))

    job.sample = skipped
    return job.train(20)


UNSEEN = (
    Situation("a GPU has too little memory", Symptom.OUT_OF_MEMORY, "gpu-memory", a_gpu_out_of_memory),
    Situation("a pod has too little memory", Symptom.OUT_OF_MEMORY, "own-limit", a_pod_at_its_limit),
    Situation("a port is down", Symptom.HUNG, "link", a_link_that_is_down),
    Situation("somebody paused it", Symptom.HUNG, "held", a_paused_job),
    Situation("everything is slower", Symptom.SLOW, "slow-everybody", all_are_slow),
    Situation("a machine is slower", Symptom.SLOW, "slow-machine", a_slow_machine),
    Situation("one machine computed a NaN", Symptom.NAN, "nan-of-one-rank", a_nan_of_one_rank),
    Situation("somebody sent it back", Symptom.LOSS_SPIKED, "went-back", somebody_rewound_it),
    Situation(
        "the workers of one node die", Symptom.NODE_SUSPECT, "same-node-again", a_node_that_kills_its_workers
    ),
    Situation("nothing is saved", Symptom.CHECKPOINT_STALE, "never-saved", nothing_is_saved),
    Situation("it hangs and saves nothing", Symptom.CHECKPOINT_STALE, "no-steps", a_standstill),
    Situation("the cluster has no room", Symptom.WILL_NOT_START, "pods-pending", no_room_in_the_cluster),
    Situation("a slow loader costs", Symptom.COST, "slow-ranks", a_loader_that_costs),
    Situation("a node is cut off", Symptom.HUNG, "member-lost", a_node_nobody_hears),
    Situation("steps are left out", Symptom.LOSS_SPIKED, "gradients", steps_that_are_left_out),
)
