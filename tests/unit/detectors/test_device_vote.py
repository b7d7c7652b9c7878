"""Devices answer the fixed block, memory keeps its content: who does not is found, what is sound is verified."""

import random

import pytest
from signals import JOB, policy, reported, started

from holdfast.api.event import ReplicasAgreed
from holdfast.api.finding import Confidence, Finding, FindingKind, ProvedBy, Subject
from holdfast.api.policy import CorruptionPolicy, FaultAction, XidAction
from holdfast.api.telemetry import DeviceAnswered, ParametersChanged, ParametersFingerprinted
from holdfast.watchdog.detectors.detector import RoundStopped
from holdfast.watchdog.detectors.device_vote import CHANGES_TOGETHER_S, MEMORY_CHANGE, DeviceVoteDetector
from holdfast.watchdog.detectors.replica_vote import FINDINGS_PER_ROUND, LATE_S

RIGHT, WRONG, OTHER = 0xA11CE, 0xBAD, 0xC0FFEE
H100, A100 = 100, 80


class Devices:
    """Ranks of a job that answer; each holds a part of the model of its own. Collects what is proved."""

    def __init__(self, nodes: int = 4, local_size: int = 2, action: FaultAction = FaultAction.EVICT) -> None:
        self.nodes, self.local_size = nodes, local_size
        self.detector = DeviceVoteDetector(policy(corruption=CorruptionPolicy(action=action)))
        self.proved: list[Finding | ReplicasAgreed] = []
        self.round = 0
        self.starts()

    @property
    def ranks(self) -> range:
        return range(self.nodes * self.local_size)

    def starts(self, *, replicas: bool = False) -> None:
        self.round += 1
        self.detector.observe(started(self.round, nodes=self.nodes, local_size=self.local_size), 0.0)
        for rank in self.ranks:
            self.tell(rank, ParametersFingerprinted(self.round, rank, 0 if replicas else rank, 10, 1, 0.0))

    def tell(
        self, rank: int, *events: DeviceAnswered | ParametersChanged | ParametersFingerprinted, at: float = 0.0
    ) -> None:
        self.proved += self.detector.observe(reported(f"n{rank // self.local_size}", events=events), at)

    def says(
        self, rank: int, step: int, value: int, *, device: int = H100, looks: int = 9, at: float = 0.0
    ) -> None:
        self.tell(rank, DeviceAnswered(self.round, rank, device, step, value, looks, 0.1), at=at)

    def all_say(self, step: int, *, but: dict[int, int] | None = None, looks: int = 9) -> None:
        for rank in self.ranks:
            self.says(rank, step, (but or {}).get(rank, RIGHT), looks=looks)

    def changes(self, rank: int, step: int, at: float = 0.0) -> None:
        self.tell(rank, ParametersChanged(self.round, rank, step, 0.0), at=at)

    def waits_until(self, at: float) -> None:
        self.proved += self.detector.elapse(at)

    @property
    def found(self) -> list[Finding]:
        return [each for each in self.proved if isinstance(each, Finding)]

    @property
    def agreed(self) -> list[int]:
        assert all(each.by is ProvedBy.DEVICES for each in self.proved if isinstance(each, ReplicasAgreed))
        return [each.step for each in self.proved if isinstance(each, ReplicasAgreed)]


def test_what_was_there_before_the_step_after_which_all_devices_answer_right_is_verified() -> None:
    devices = Devices()
    devices.all_say(1, looks=0)
    devices.all_say(100)
    devices.all_say(200)
    assert devices.agreed == [99, 199]
    assert devices.found == []


def test_nothing_is_verified_before_the_last_rank_has_answered() -> None:
    devices = Devices()
    devices.all_say(100)
    for rank in devices.ranks[1:]:
        devices.says(rank, 200, RIGHT)
    assert devices.agreed == [99]
    devices.says(0, 200, RIGHT)
    assert devices.agreed == [99, 199]


def test_ranks_that_answer_more_rarely_count_with_their_own_steps() -> None:
    devices = Devices(nodes=2, local_size=1)
    for step in (100, 200, 300, 400):
        devices.says(0, step, RIGHT)
        if step % 200 == 0:
            devices.says(1, step, RIGHT)
    assert devices.agreed == [199, 399]


def test_where_no_pause_was_looked_at_nothing_is_verified() -> None:
    devices = Devices()
    for step in (100, 200, 300):
        devices.all_say(step, looks=0)
    assert devices.proved == []


def test_where_replicas_are_compared_devices_verify_nothing() -> None:
    devices = Devices()
    devices.starts(replicas=True)
    devices.all_say(100)
    assert devices.proved == []
    devices.all_say(200, but={3: WRONG})
    assert [each.cause for each in devices.found] == ["device vote"], "who is wrong is wrong all the same"


def test_a_device_that_nobody_can_confirm_verifies_nothing_and_is_caught_contradicting_itself() -> None:
    devices = Devices(nodes=3, local_size=1)
    for step in (100, 200):
        for rank, device in ((0, H100), (1, H100), (2, A100)):
            devices.says(rank, step, device, device=device)
    assert devices.proved == []
    devices.says(2, 300, WRONG, device=A100)
    (finding,) = devices.found
    assert finding.subject == Subject(JOB, node="n2", member="m2", rank=2)


@pytest.mark.parametrize(
    ("action", "asks"),
    [
        (FaultAction.EVICT, XidAction.EVICT),
        (FaultAction.RESTART, XidAction.RESTART),
        (FaultAction.REPORT, XidAction.WATCH),
    ],
)
def test_a_device_that_answers_otherwise_once_is_wrong_and_nothing_is_verified_any_more(
    action: FaultAction, asks: XidAction
) -> None:
    devices = Devices(action=action)
    devices.all_say(100)
    devices.all_say(200, but={5: WRONG})
    devices.all_say(300)
    (finding,) = devices.found
    assert (finding.kind, finding.cause, finding.confidence) == (
        FindingKind.CORRUPTION,
        "device vote",
        Confidence.CERTAIN,
    )
    assert finding.subject == Subject(JOB, node="n2", member="m2", rank=5)
    assert (finding.asks, finding.step, finding.agreed_step, finding.round) == (asks, 200, 99, 1)
    assert "rank 5 computed something else" in finding.error
    assert devices.agreed == [99]


def test_of_two_devices_the_one_that_contradicts_what_both_had_said_is_wrong() -> None:
    devices = Devices(nodes=2, local_size=1)
    devices.all_say(100)
    devices.says(1, 200, WRONG)
    assert devices.found == []
    devices.says(0, 200, RIGHT)
    (finding,) = devices.found
    assert (finding.cause, finding.subject.rank) == ("device vote", 1)


def test_two_devices_that_never_agreed_are_both_named_and_nobody_is_convicted() -> None:
    devices = Devices(nodes=2, local_size=1)
    devices.all_say(100, but={1: WRONG})
    devices.all_say(200, but={1: WRONG})
    (finding,) = devices.found
    assert (finding.cause, finding.confidence, finding.asks) == (
        "device tie",
        Confidence.UNKNOWN,
        XidAction.EVICT,
    )
    assert [finding.subject.rank, *(each.rank for each in finding.also)] == [0, 1]
    assert devices.agreed == []


def test_what_is_right_is_remembered_over_rounds() -> None:
    devices = Devices(nodes=2, local_size=1)
    devices.all_say(100)
    devices.starts()
    devices.all_say(100, but={0: WRONG})
    devices.all_say(200)
    (finding,) = devices.found
    assert (finding.cause, finding.subject.rank, finding.round) == ("device vote", 0, 2)


def test_what_one_device_alone_said_convicts_nobody_in_a_later_round() -> None:
    """It may have been the broken one, which has left since."""
    devices = Devices(nodes=1, local_size=1)
    devices.all_say(100, but={0: WRONG})
    devices.starts()
    for step in (100, 200):
        devices.all_say(step)
    assert devices.found == []


def test_two_that_say_the_same_have_other_software_and_nobody_is_convicted() -> None:
    """Such as a node with a driver or a library of its own: its devices agree with each other."""
    devices = Devices()
    for step in (100, 200, 300):
        devices.all_say(step, but={2: WRONG, 3: WRONG})
    (finding,) = devices.found
    assert (finding.cause, finding.confidence, finding.asks) == (
        "device split",
        Confidence.UNKNOWN,
        XidAction.WATCH,
    )
    assert [finding.subject.rank, *(each.rank for each in finding.also)] == [2, 3]
    assert devices.agreed == []


def test_one_that_always_says_the_same_is_to_be_tested_and_is_not_convicted() -> None:
    devices = Devices(nodes=4, local_size=1)
    devices.all_say(100, but={2: WRONG})
    assert devices.proved == [], "it may contradict itself the next time"
    devices.all_say(200, but={2: WRONG})
    (finding,) = devices.found
    assert (finding.cause, finding.confidence, finding.asks) == (
        "device apart",
        Confidence.UNKNOWN,
        XidAction.EVICT,
    )
    assert (finding.subject.rank, finding.also) == (2, ())
    devices.all_say(300)
    assert [each.cause for each in devices.found] == ["device apart", "device vote"], "now it has said two things"


def test_a_round_that_agrees_on_something_else_than_the_one_before_has_other_software() -> None:
    devices = Devices()
    devices.all_say(100)
    devices.starts()
    for step in (100, 200):
        for rank in devices.ranks:
            devices.says(rank, step, OTHER)
    assert devices.found == []
    assert devices.agreed == [99, 99, 199]


def test_devices_of_another_make_are_not_compared() -> None:
    devices = Devices()
    for step in (100, 200):
        for rank in devices.ranks:
            device = H100 if rank < 4 else A100
            devices.says(rank, step, device, device=device)
    assert devices.found == []
    assert devices.agreed == [99, 199]


def test_a_minority_on_three_nodes_is_the_software() -> None:
    devices = Devices(nodes=8, local_size=1)
    devices.all_say(100, but={0: WRONG, 1: WRONG, 2: WRONG})
    (finding,) = devices.found
    assert (finding.cause, finding.confidence, finding.asks) == (
        "device split",
        Confidence.UNKNOWN,
        XidAction.WATCH,
    )
    assert "software" in finding.error


def test_nobody_is_judged_before_all_have_spoken_or_are_late() -> None:
    devices = Devices(nodes=5, local_size=1)
    for rank in (0, 1, 2):
        devices.says(rank, 100, RIGHT)
    devices.says(3, 100, WRONG)
    assert devices.found == []
    devices.says(3, 200, RIGHT, at=LATE_S - 1.0)
    assert devices.found == []
    devices.says(0, 200, RIGHT, at=LATE_S)
    assert [each.subject.rank for each in devices.found] == [3]


def test_who_is_missing_counts_as_against() -> None:
    devices = Devices(nodes=4, local_size=1)
    devices.says(0, 100, RIGHT)
    devices.says(1, 100, RIGHT)
    devices.says(2, 100, WRONG, at=2 * LATE_S)
    assert devices.proved == []


def test_a_device_that_is_always_wrong_in_another_way_is_one_finding_and_takes_no_more_room() -> None:
    devices = Devices()
    for number in range(1, 500):
        devices.all_say(100 * number, but={7: 1000 + number})
    assert [each.cause for each in devices.found] == ["device vote"]
    assert len(devices.detector._sides[H100]) <= 64


def test_answers_of_strangers_other_rounds_and_past_steps_do_not_count() -> None:
    devices = Devices()
    devices.all_say(100)
    before = len(devices.proved)
    devices.tell(0, DeviceAnswered(1, 5, H100, 200, WRONG, 9, 0.0))
    devices.tell(0, DeviceAnswered(7, 0, H100, 200, WRONG, 9, 0.0), ParametersChanged(7, 0, 3, 0.0))
    devices.says(0, 100, WRONG)
    devices.detector.observe(RoundStopped(1), 0.0)
    devices.says(0, 300, WRONG)
    assert len(devices.proved) == before
    assert devices.detector.next_wakeup() is None


def test_parameters_that_changed_in_a_pause_convict_whoever_holds_them() -> None:
    devices = Devices()
    devices.all_say(100)
    devices.changes(3, 150, at=10.0)
    devices.all_say(200)
    assert devices.found == []
    assert devices.detector.next_wakeup() == 10.0 + CHANGES_TOGETHER_S
    devices.waits_until(10.0 + CHANGES_TOGETHER_S)
    (finding,) = devices.found
    assert (finding.cause, finding.confidence, finding.asks) == (
        MEMORY_CHANGE,
        Confidence.CERTAIN,
        XidAction.EVICT,
    )
    assert finding.subject == Subject(JOB, node="n1", member="m1", rank=3)
    assert (finding.step, finding.agreed_step) == (150, 99)
    assert "after step 150" in finding.error
    assert devices.agreed == [99], "nothing of the round is verified after that"
    assert devices.detector.next_wakeup() is None


def test_a_change_in_the_pause_after_the_step_verified_last_takes_that_step_back() -> None:
    devices = Devices()
    devices.all_say(100)
    devices.changes(3, 99)
    devices.waits_until(CHANGES_TOGETHER_S)
    assert devices.found[0].agreed_step == 98


@pytest.mark.parametrize("ranks", [(0, 2, 4), (0, 1, 2, 3, 4)])
def test_parameters_that_change_in_many_places_at_once_are_written_by_the_script(ranks: tuple[int, ...]) -> None:
    devices = Devices()
    for rank in ranks:
        devices.changes(rank, 20)
    devices.waits_until(CHANGES_TOGETHER_S)
    (finding,) = devices.found
    assert (finding.cause, finding.asks, finding.confidence) == (
        "memory written",
        XidAction.WATCH,
        Confidence.UNKNOWN,
    )


@pytest.mark.parametrize("nodes", [1, 4])
def test_what_changes_in_more_than_one_bit_is_the_script_s_also_where_one_rank_alone_saw_it(nodes: int) -> None:
    """Ranks look at different pauses, and a script may write on one of them: rank 0 merges adapters to save."""
    devices = Devices(nodes=nodes, local_size=1)
    devices.tell(0, ParametersChanged(devices.round, 0, 20, 0.0, is_flip=False))
    devices.waits_until(CHANGES_TOGETHER_S)
    (finding,) = devices.found
    assert (finding.cause, finding.asks, finding.confidence) == (
        "memory written",
        XidAction.WATCH,
        Confidence.UNKNOWN,
    )


def test_a_job_of_one_rank_whose_parameters_change_has_bad_memory() -> None:
    devices = Devices(nodes=1, local_size=1)
    devices.changes(0, 20)
    devices.waits_until(CHANGES_TOGETHER_S)
    assert [each.cause for each in devices.found] == [MEMORY_CHANGE]


def test_findings_of_one_round_are_bounded() -> None:
    devices = Devices(nodes=40, local_size=1)
    for number, rank in enumerate(devices.ranks):
        devices.all_say(100 * (number + 1), but=dict.fromkeys(range(min(rank, 18)), WRONG))
    assert len(devices.found) <= FINDINGS_PER_ROUND


def runs_until_found(seed: int, *, chance: float, runs: int, ranks: int = 4) -> int | None:
    """How often a world ran the block until the device of rank 1, wrong with `chance`, was found; None: never."""
    world, fault = Devices(nodes=ranks, local_size=1), random.Random(seed)
    for run in range(1, runs + 1):
        value = fault.getrandbits(64) if fault.random() < chance else RIGHT
        world.all_say(100 * run, but={1: value})
        if world.found:
            assert {each.subject.rank for each in world.found} == {1}
            assert world.found[0].confidence is Confidence.CERTAIN
            return run
    return None


def test_a_device_wrong_one_time_in_fifty_is_found_within_150_runs_in_95_of_100_cases() -> None:
    """1 - 0.98**150 = 95.2%. Of 400 worlds 380.7 are expected; three standard deviations less are 368."""
    found = [run for seed in range(400) if (run := runs_until_found(seed, chance=0.02, runs=150)) is not None]
    assert len(found) >= 368


def test_sound_devices_are_never_found_wrong_however_long_they_run() -> None:
    assert runs_until_found(0, chance=0.0, runs=5000) is None


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_setting_that_changes_on_all_ranks_at_once_convicts_nobody(nodes: int) -> None:
    devices = Devices(nodes=nodes)
    devices.all_say(100)
    for rank in devices.ranks:
        devices.says(rank, 200, OTHER, at=200.0 + 0.1 * rank)
    for rank in devices.ranks:
        devices.says(rank, 300, OTHER, at=300.0)
    assert {each.asks for each in devices.found} <= {XidAction.WATCH}
    assert all("software is suspect" in each.error for each in devices.found)


def test_who_answers_otherwise_is_convicted_late_when_the_others_do_not_answer_at_that_step() -> None:
    devices = Devices()
    devices.all_say(100)
    devices.says(3, 200, WRONG, at=200.0)
    devices.says(0, 200, RIGHT, at=200.1)
    assert not devices.found
    devices.waits_until(200.0 + LATE_S)
    assert [each.subject.rank for each in devices.found] == [3]


def test_a_round_of_which_nobody_is_watched_verifies_nothing() -> None:
    detector = DeviceVoteDetector(policy())
    detector.observe(started(nodes=0), 0.0)
    assert detector.observe(reported("n0", events=(DeviceAnswered(1, 0, 10, 1, 7, 0, 0.1),)), 1.0) == []
