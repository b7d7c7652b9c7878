"""The rank that all others wait for: who it is, what makes it slow, and whom nobody is to blame."""

from collections.abc import Callable

import msgspec
import pytest
from signals import JOB, policy, rank_sample, started

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.event import ConditionOver
from holdfast.api.finding import Confidence, Finding, FindingKind, SlowCause, Subject
from holdfast.api.policy import SlowAction, StragglerPolicy, XidAction
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeReport, StepWork
from holdfast.watchdog.detectors.detector import Placed, Reported, RoundStopped
from holdfast.watchdog.detectors.straggler import ENDS_MAX, LOOKS_SETTLING, TOLD_MAX, StragglerDetector

STEP_S = 4.0
USUAL = {"own": 3.0, "data": 0.1, "checkpoint": 0.0, "collected": 0.0, "delayed": 0.0, "stopped": 0.0}
Odd = Callable[[int, int], dict[str, float]]  # what of a rank's step, by step and rank, is not as usual


def usual(step: int, rank: int) -> dict[str, float]:
    return {}


class Job:
    """`nodes` of two ranks that train in step; all are a little apart, and nothing is drawn."""

    def __init__(self, *, nodes: int = 8, odd: Odd = usual, knows_waiting: bool = True, **changes: object) -> None:
        self.detector = StragglerDetector(policy(nodes_max=nodes, **changes))
        self.nodes, self.odd, self.knows_waiting = nodes, odd, knows_waiting
        self.sums: list[dict[str, float]] = [{} for _ in range(2 * nodes)]
        self.found: list[Finding] = []
        self.over: list[ConditionOver] = []
        self.step, self.now, self.mute = 0, 100.0, set[int]()
        self.sensed: dict[int, dict[str, object]] = {}
        self.lies: dict[int, dict[str, float]] = {}  # by rank, what it says of its work whatever happens
        self.detector.observe(started(nodes=nodes), self.now)

    def train(self, steps: int, odd: Odd | None = None) -> "Job":
        self.odd = odd or self.odd
        for _ in range(steps):
            self.step += 1
            spent = [self._spent(rank) for rank in range(2 * self.nodes)]
            busy = [each["own"] + each["data"] + each["checkpoint"] for each in spent]
            wall = max(busy) + 0.5
            self.now += wall
            for rank, each in enumerate(spent):
                each |= {"wall": wall, "waited": wall - busy[rank]}
                if each["stopped"]:
                    each["waited"] += each["stopped"]
                for part, value in each.items():
                    self.sums[rank][part] = self.sums[rank].get(part, 0.0) + value
            for node in range(self.nodes):
                if node not in self.mute:
                    ranks = tuple(map(self._sample, (2 * node, 2 * node + 1)))
                    report = NodeReport(f"n{node}", "boot", 1, ranks, **self.sensed.get(node, {}))
                    said = self.detector.observe(Reported(report), self.now)
                    self.found += [each for each in said if isinstance(each, Finding)]
                    self.over += [each for each in said if isinstance(each, ConditionOver)]
        return self

    def _spent(self, rank: int) -> dict[str, float]:
        apart = 1.0 + 0.01 * ((7 * rank + 3 * self.step) % 5 - 2) / 2
        spent = {
            **USUAL,
            "tokens": 1000.0,
            "longest": 500.0,
            "idle": 0.0,
            "after": 0.0,
            **self.odd(self.step, rank),
        }
        spent["own"] = spent["own"] * apart + spent["collected"] + spent["delayed"] + spent["stopped"]
        spent["own"] += spent["after"]
        return spent

    def _sample(self, rank: int) -> object:
        sums = self.sums[rank]
        told = (sums["waited"], sums["delayed"]) if self.knows_waiting else (None, None)
        work = StepWork(
            self.step,
            sums["wall"],
            sums["data"],
            sums["checkpoint"],
            sums["idle"],
            sums["collected"],
            *told,
            sums["stopped"],
            int(sums["tokens"]),
            int(sums["longest"]),
            own_s=sums["after"],
        )
        work = msgspec.structs.replace(work, **self.lies.get(rank, {}))
        return rank_sample(rank, step=self.step + 1000, work=work)

    @property
    def causes(self) -> list[SlowCause]:
        return [each.slow.cause for each in self.found if each.slow is not None]


def only(rank: int, **odd: float) -> Odd:
    return lambda step, each: odd if each == rank else {}


WARM = LOOKS_SETTLING + 20


def test_a_job_in_which_all_are_alike_is_no_news() -> None:
    assert Job().train(300).found == []


def test_a_slow_machine_is_named_with_what_it_costs() -> None:
    job = Job().train(WARM).train(6, only(5, own=3.9))
    (finding,) = job.found
    assert (finding.kind, finding.subject) == (FindingKind.STRAGGLER, Subject(JOB, node="n2", member="m2", rank=5))
    assert (finding.confidence, finding.asks) == (Confidence.PROBABLE, XidAction.WATCH)
    assert finding.slow is not None
    assert finding.slow.cause is SlowCause.MACHINE
    assert finding.slow.excess_s == pytest.approx(0.9, abs=0.1)
    assert finding.slow.step_s == pytest.approx(4.5, abs=0.1)
    assert 1000 + WARM < (finding.step or 0) <= 1000 + WARM + 6, "what the script calls its steps"
    assert f"since step {1000 + WARM + 1}" in finding.error
    assert job.train(100).found == [finding], "once a round"


@pytest.mark.parametrize(
    ("odd", "cause", "says"),
    [
        ({"data": 1.2}, SlowCause.DATA, "waits for its data"),
        ({"checkpoint": 1.2}, SlowCause.SOFTWARE, "saves checkpoints"),
        ({"collected": 1.2}, SlowCause.SOFTWARE, "collects garbage"),
        ({"delayed": 1.2}, SlowCause.SOFTWARE, "without a processor"),
        ({"stopped": 1.2}, SlowCause.SOFTWARE, "was stopped"),
        ({"after": 1.2}, SlowCause.SOFTWARE, "work of the script's own"),
        ({"own": 4.2, "tokens": 1400.0}, SlowCause.SHAPE, "more to do"),
        ({"own": 4.2, "longest": 650.0}, SlowCause.SHAPE, "more to do"),
        ({"own": 6.0, "tokens": 1100.0}, SlowCause.MACHINE, "computes"),
    ],
)
def test_what_else_makes_a_rank_slow_is_told_apart(odd: dict[str, float], cause: SlowCause, says: str) -> None:
    job = Job(straggler=StragglerPolicy(action=SlowAction.EVICT)).train(WARM).train(8, only(5, **odd))
    (finding,) = job.found
    assert (job.causes, finding.subject.rank) == ([cause], 5)
    assert says in finding.error
    assert finding.asks is XidAction.WATCH, "it may be over at once"
    of_the_host = not {"delayed", "stopped"}.isdisjoint(odd)
    may_move = cause is SlowCause.MACHINE or of_the_host
    again = job.train(160).found[1:]
    assert [each.asks for each in again] == [None] * may_move, "no other cause moves ranks"
    assert all(each.began_at == finding.began_at and each.subject == finding.subject for each in again)


def test_a_burst_of_another_rank_hides_no_cost() -> None:
    def beside_bursts(step: int, rank: int) -> dict[str, float]:
        return {"own": 4.5} if rank == 5 else {"own": 9.0} if rank == step % 4 + 8 else {}

    (finding,) = Job().train(WARM).train(8, beside_bursts).found
    assert (finding.subject.rank, finding.slow and finding.slow.excess_s > 1.0) == (5, True)


def test_where_waiting_is_unknown_only_what_is_known_is_compared() -> None:
    assert Job(knows_waiting=False).train(WARM).train(60, only(5, own=6.0)).causes in ([], [SlowCause.EVERYBODY])
    assert Job(knows_waiting=False).train(WARM).train(8, only(5, data=1.2)).causes == [SlowCause.DATA]


def test_a_burst_is_no_fault_and_what_comes_again_and_again_is() -> None:
    def now_and_then(step: int, rank: int) -> dict[str, float]:
        return {"own": 6.0} if rank == 5 and step % 10 < 2 else {}

    burst = Job().train(WARM).train(2, only(5, own=6.0)).train(100, usual)
    assert burst.found == []
    again = Job(straggler=StragglerPolicy(action=SlowAction.EVICT)).train(WARM).train(300, now_and_then)
    assert again.causes == [SlowCause.MACHINE]
    assert again.found[0].asks is XidAction.WATCH, "what comes and goes may be gone for a while on any node"


@pytest.mark.parametrize("rank", [0, 5])
@pytest.mark.parametrize(("every", "seconds"), [(8, 6.0), (10, 20.0), (20, 30.0), (5, 30.0), (3, 30.0)])
def test_what_a_script_does_on_one_rank_now_and_then_is_no_machines(rank: int, every: int, seconds: float) -> None:
    def evaluates(step: int, each: int) -> dict[str, float]:
        return {"own": 3.0 + seconds} if each == rank and step % every == 0 else {}

    job = Job(straggler=StragglerPolicy(action=SlowAction.EVICT)).train(WARM).train(400, evaluates)
    assert set(job.causes) == {SlowCause.SOFTWARE}
    assert len(job.found) <= 1 + ENDS_MAX
    assert {(each.subject.rank, each.asks) for each in job.found} == {(rank, XidAction.WATCH)}
    assert all("in a few long steps" in each.error for each in job.found)


def test_what_is_over_is_told_and_may_come_again() -> None:
    job = Job().train(WARM).train(8, only(5, own=3.9)).train(80, usual)
    assert [(each.node, each.cause) for each in job.over] == [("n2", "slow: machine")]
    job.train(8, only(5, own=3.9))
    assert [each.subject.rank for each in job.found] == [5, 5]
    for _ in range(5):
        job.train(80, usual).train(8, only(5, own=3.9))
    assert (len(job.found), len(job.over)) == (3, ENDS_MAX), "from then on it counts as slow until its round ends"


def test_what_lasts_is_not_over() -> None:
    job = Job(straggler=StragglerPolicy(action=SlowAction.EVICT)).train(WARM).train(500, only(5, own=3.9))
    assert (len(job.found), job.over) == (2, [])


def test_a_rank_that_is_slow_from_the_start_is_found_beside_its_peers() -> None:
    assert Job(odd=only(5, own=3.9)).train(14).causes == [SlowCause.MACHINE]
    job = Job(odd=only(0, own=3.9)).train(14)
    assert job.causes == [SlowCause.SOFTWARE]
    assert "the script does more there" in job.found[0].error


def test_a_node_whose_ranks_are_all_slow_is_named_as_one() -> None:
    job = Job().train(WARM).train(8, lambda step, rank: {"own": 3.9} if rank in (4, 5) else {})
    (finding,) = job.found
    assert finding.subject == Subject(JOB, node="n2", member="m2")
    assert [each.rank for each in finding.also] == [4, 5]
    assert job.causes == [SlowCause.MACHINE]


def test_of_two_nodes_or_two_ranks_the_one_that_waits_is_not_the_slow_one() -> None:
    two_nodes = Job(nodes=2).train(WARM).train(10, lambda step, rank: {"own": 3.9} if rank > 1 else {})
    assert [each.subject.node for each in two_nodes.found] == ["n1"]
    two_ranks = Job(nodes=1).train(WARM).train(10, only(1, own=3.9))
    assert [each.subject.rank for each in two_ranks.found] == [1]


def test_nodes_that_become_slow_at_once_share_what_is_slow() -> None:
    job = Job(straggler=StragglerPolicy(action=SlowAction.EVICT))
    for node in range(8):
        job.detector.observe(Placed(f"n{node}", f"r{node // 3}"), job.now)
    job.train(WARM).train(8, lambda step, rank: {"own": 3.9} if 6 <= rank < 12 else {})
    (finding,) = job.found
    assert (job.causes, finding.asks) == ([SlowCause.EVERYBODY], XidAction.WATCH)
    assert [each.node for each in finding.also] == ["n3", "n4", "n5"]
    assert "rack r1" in finding.error
    # Without a rack that they share, it is the moment.
    apart = Job().train(WARM).train(8, lambda step, rank: {"own": 3.9} if rank in (1, 6, 11) else {})
    assert apart.causes == [SlowCause.EVERYBODY]
    assert "at once" in apart.found[0].error


def test_nodes_that_are_slow_from_the_start_are_each_named() -> None:
    job = Job(nodes=32, odd=lambda step, rank: {"own": 3.9} if rank % 6 == 1 else {}).train(14)
    assert len(job.found) == TOLD_MAX
    assert set(job.causes) == {SlowCause.MACHINE}


def test_a_place_in_the_model_that_is_slow_is_shape() -> None:
    job = Job(model_ranks=2, odd=lambda step, rank: {"own": 3.9} if rank % 2 else {}).train(30)
    (finding,) = job.found
    assert (job.causes, finding.subject, finding.confidence) == (
        [SlowCause.SHAPE],
        Subject(JOB),
        Confidence.CERTAIN,
    )
    assert "place 1 of 2, the last of the model" in finding.error


def test_a_stage_of_several_places_costs_what_it_is_beyond_the_other_stages() -> None:
    job = Job(nodes=16, model_ranks=8, odd=lambda step, rank: {"own": 3.9} if rank % 8 > 5 else {}).train(40)
    assert job.causes == [SlowCause.SHAPE] * 2
    assert all(each.slow and each.slow.excess_s == pytest.approx(0.9, abs=0.1) for each in job.found)


def test_a_single_model_is_compared_with_what_each_rank_was() -> None:
    uneven = {0: 2.0, 1: 3.0, 2: 3.5, 3: 2.5}

    def stages(slow: float) -> Odd:
        return lambda step, rank: {"own": uneven[rank] * (slow if rank == 2 else 1.0)}

    job = Job(nodes=2, model_ranks=4, odd=stages(1.0)).train(60)
    assert job.found == []
    assert [each.subject.rank for each in job.train(10, stages(1.4)).found] == [2]


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({"data": 1.6}, "the storage is suspect"),
        ({"own": 4.5}, "all compute longer"),
        ({"own": 4.5, "tokens": 1500.0}, ""),
    ],
)
def test_what_makes_all_slower_is_nobodys_machine(odd: dict[str, float], says: str) -> None:
    job = Job().train(90).train(40, lambda step, rank: odd)
    assert job.causes == ([SlowCause.EVERYBODY] if says else [])
    assert all(says in each.error and each.subject == Subject(JOB) for each in job.found)


def test_what_the_node_senses_is_joined_with_a_slow_machine() -> None:
    job = Job(straggler=StragglerPolicy(action=SlowAction.SWAP)).train(WARM)
    degraded = Condition(ConditionKind.PCIE_DEGRADED, ConditionState.RAISED, 1.0, "x4", "GPU-7")
    gone = Condition(ConditionKind.LINK_ERRORS, ConditionState.CLEARED, 1.0, "")
    hot = GpuSample("GPU-7", 0, GpuHealth.HEALTHY, temperature_c=91.0, throttle=0x40)
    job.sensed[2] = {"conditions": (degraded, gone), "gpus": (hot,)}
    finding, again = job.train(160, only(5, own=3.9)).found
    assert [each.confidence for each in (finding, again)] == [Confidence.CERTAIN] * 2
    assert [each.asks for each in (finding, again)] == [XidAction.WATCH, None]
    said = [each.says for each in finding.evidence if "sensors of node n2" in each.source]
    assert said == ["PcieDegraded of GPU GPU-7", "GPU GPU-7 is held down (NVML reasons 0x40) at 91 C"]


def test_the_policy_says_how_slow_and_for_how_long() -> None:
    lenient = StragglerPolicy(slower_than=0.5)
    assert Job(straggler=lenient).train(WARM).train(40, only(5, own=3.9)).causes == []
    patient = StragglerPolicy(sustained=30)
    job = Job(straggler=patient).train(WARM).train(28, only(5, own=3.9))
    assert job.found == []
    assert job.train(6).causes == [SlowCause.MACHINE]
    # What costs the job little is told where the policy asks for it.
    strict = StragglerPolicy(slower_than=0.03, action=SlowAction.EVICT)
    assert Job(straggler=strict).train(WARM).train(8, only(5, own=3.25)).causes == [SlowCause.MACHINE]


LIES = [
    {"steps": 2**53 - 1},
    {"steps": 1},
    {"wall_s": 5e-324},
    {"wall_s": 4e10},
    {"steps": 2**53 - 1, "wall_s": 4e10},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
@pytest.mark.parametrize("liar", [0, 3, 15])
@pytest.mark.parametrize("mute", [set(), {4}], ids=["all told", "one node is mute"])
def test_a_rank_that_lies_blinds_nobody(lie: dict[str, float], liar: int, mute: set[int]) -> None:
    job = Job()
    job.mute, job.lies[liar] = mute, lie
    job.train(2 * WARM).train(24, only(5, own=3.9))
    assert [each.subject.rank for each in job.found if each.subject.rank != liar] == [5]
    assert job.found[-1].step is not None
    assert 1000 + 2 * WARM < job.found[-1].step <= 1000 + 2 * WARM + 24


def test_a_rank_that_says_no_more_leaves_its_neighbours_in() -> None:
    job = Job()
    job.lies[4] = {"steps": 1}
    assert [each.subject.rank for each in job.train(2 * WARM).train(24, only(5, own=3.9)).found] == [5]


def test_ranks_that_are_not_heard_of_are_not_waited_for_without_end() -> None:
    job = Job().train(WARM)
    job.mute = {7}
    assert [each.subject.rank for each in job.train(30, only(5, own=3.9)).found] == [5]
    job = Job().train(WARM)
    job.mute = {*range(1, 8)}
    assert job.train(40, only(1, own=3.9)).found == [], "of most nothing is known"


def test_a_new_round_begins_anew_and_what_says_nothing_of_its_steps_is_not_judged() -> None:
    job = Job().train(WARM)
    job.detector.observe(started(2, nodes=8), job.now)
    assert job.train(20, only(5, own=6.0)).found == [], "samples of the round before"
    ended = Job()
    ended.detector.observe(RoundStopped(2), ended.now)
    assert ended.train(20).found == [], "no round runs"
    silent = Job()
    report = Reported(NodeReport("n0", "boot", 1, (rank_sample(0), rank_sample(1))))
    assert list(silent.detector.observe(report, 101.0)) == []


def test_sums_that_no_training_has_are_taken() -> None:
    job = Job()
    none = StepWork(1, 5e-324, 4e10, -4e10, 0.0, 0.0, 4e10, -1.0, 0.0, 2**53 - 1, 0)
    for node in range(job.nodes):
        ranks = tuple(rank_sample(rank, step=3, work=none) for rank in (2 * node, 2 * node + 1))
        assert not job.detector.observe(Reported(NodeReport(f"n{node}", "boot", 1, ranks)), 200.0)
    assert job.train(40).found == []
