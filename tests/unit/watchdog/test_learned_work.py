"""What the brain learns of a job's long work is shown to whoever judges it, also after the watchdog restarts."""

from forgetful_store import MemoryStore

from holdfast.api.event import JobSubmitted, StopEnded
from holdfast.api.longwork import LongWork
from holdfast.api.policy import Policy
from holdfast.watchdog import brain
from holdfast.watchdog.detectors.detector import Detector, Sample, WorkKnown
from holdfast.watchdog.detectors.progress import Progress
from holdfast.watchdog.job import Job
from holdfast.watchdog.senses import Senses

JOB = "team/run"
POLICY = Policy(job=JOB, nodes_min=1, nodes_max=2, checkpoint_uri="/ckpt")


class Judge(Detector):
    subscribes_to: tuple[type[Sample], ...] = (WorkKnown,)

    def __init__(self) -> None:
        self.known: list[LongWork] = []

    def observe(self, sample: Sample, now: float) -> tuple[()]:
        assert isinstance(sample, WorkKnown)
        self.known.append(sample.work)
        return ()


def watched(store: MemoryStore, judge: Judge) -> Job:
    senses = Senses((judge,), Progress(POLICY))
    return Job(JOB, store=store, fence=store.claim(), brain=brain, senses_for=lambda policy: senses)


def test_it_is_shown_as_soon_as_it_is_learned_and_to_the_next_watchdog() -> None:
    store, judge = MemoryStore(), Judge()
    job = watched(store, judge)
    job.demand(JobSubmitted(POLICY), 1.0)
    assert judge.known == []
    job.record(StopEnded(1, 1, 12.0, worked=True), 2.0)
    job.record(StopEnded(1, 0, 7.0, worked=False), 3.0)
    job.record(StopEnded(1, 0, 5.0, worked=False), 4.0)
    assert judge.known == [LongWork(worked_s=12.0), LongWork(12.0, {0: 7.0})]
    later = Judge()
    again = watched(store, later)
    again.restore()
    again.resume(5.0)
    assert later.known == [LongWork(12.0, {0: 7.0})]
