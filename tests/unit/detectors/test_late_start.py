"""A rank that is late for the first step of a round: when it is named, and above all when it is not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec import structs
from signals import JOB, policy, rank_sample, reported

from holdfast.api.finding import Confidence, Finding, FindingKind
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Endpoint, Entry, MemberRanks, ReplicaGroup, Restore, Round, Tier
from holdfast.api.telemetry import ProcessState, RankSample, Unreadable
from holdfast.watchdog.detectors.detector import Connected, RoundStarted, RoundStopped
from holdfast.watchdog.detectors.late_start import (
    LATE_S_MIN,
    ROUNDS_KEPT,
    STARTS_ALLOWED,
    STOPPED_S,
    LateStartDetector,
)

STARTUP_S = 600.0
ENDPOINT = Endpoint("127.0.0.1", 29500)
NEVER = 1e9


@dataclass
class Rank:
    """How one rank comes to its first step: seconds after the start."""

    enters_s: float = 0.3
    steps_s: float = 2.0
    collectives: int = (
        5  # of those before the first step: how many it issues, one of them a second after it entered
    )
    process: ProcessState = ProcessState.RUNNING
    phase: Phase = Phase.STARTUP

    def sample(self, rank: int, number: int, since_s: float) -> RankSample:
        has_entered, has_trained = since_s >= self.enters_s, since_s >= self.steps_s
        moved_s = self.steps_s if has_trained else min(since_s, self.enters_s + self.collectives)
        issued = min(int(max(0.0, since_s - self.enters_s)), self.collectives)
        return rank_sample(
            rank,
            round=number,
            process=self.process,
            phase=(Phase.DATA if has_trained else self.phase) if has_entered else Phase.IDLE,
            progress_age_s=since_s - (moved_s if has_entered else 0.0),
            phase_age_s=since_s,
            pulse_age_s=0.05 if has_entered else None,
            step=1 if has_trained else None,
            collective_sequence=issued if has_entered else None,
        )


def shares(*members: str) -> tuple[MemberRanks, ...]:
    return tuple(MemberRanks(each, f"node-{each}", rank, 1) for rank, each in enumerate(members))


def of_all(number: int, *members: str, entry: Entry = Entry.REENTER, tier: Tier = Tier.CHECKPOINT) -> Round:
    return Round(JOB, number, shares(*members), ENDPOINT, Restore(tier), entry, "test")


def of_groups(number: int, *groups: tuple[int, str, bool]) -> Round:
    """Groups by epoch, their members by a letter each, and whether they train."""
    members = "".join(names for _, names, _ in groups)
    made = tuple(ReplicaGroup(epoch, len(names), ENDPOINT, trains) for epoch, names, trains in groups)
    restore = Restore(Tier.CHECKPOINT)
    return Round(JOB, number, shares(*members), ENDPOINT, restore, Entry.REENTER, "test", groups=made)


@dataclass
class Job:
    """Rounds in virtual time, one rank a node, an agent each that reports every second."""

    detector: LateStartDetector = field(
        default_factory=lambda: LateStartDetector(policy(startup_timeout_s=STARTUP_S, lost_after_s=3.0))
    )
    now: float = 1000.0
    found: list[tuple[float, Finding]] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)

    def starts(self, shown: Round, seconds: float, *odd: tuple[int, Rank], usual: Rank | None = None) -> "Job":
        """The round is shown, and so much time passes. `odd` are ranks that come as no other does."""
        began, ranks = self.now, dict(odd)
        self.detector.observe(RoundStarted(shown), self.now)
        while self.now < began + seconds:
            self.now += 1.0
            for rank, share in enumerate(shown.ranks):
                sample = ranks.get(rank, usual or Rank()).sample(rank, shown.number, self.now - began)
                self.tells(share.node, [sample], began)
        return self

    def tells(self, node: str, samples: Sequence[RankSample], began: float) -> None:
        if node in self.silent:
            return
        problems = (Unreadable("rank-0", "torn"),) if node in self.unreadable else ()
        for finding in self.detector.observe(reported(node, *samples, unreadable=problems), self.now):
            self.found.append((self.now - began, finding))


STUCK_IN_IMPORTS = Rank(enters_s=NEVER, steps_s=NEVER)
WAITS = Rank(steps_s=NEVER)
STUCK_IN_A_LOAD = Rank(steps_s=NEVER, collectives=2)


def has_trained(*members: str, rounds: int = 2, usual: Rank | None = None) -> Job:
    job = Job()
    for number in range(1, rounds + 1):
        job.starts(of_all(number, *members), 20.0, usual=usual)
    assert job.found == []
    return job


def test_a_rank_that_does_not_enter_a_new_round_is_named_long_before_the_start_up_time_out() -> None:
    job = has_trained(*"abcd")
    job.starts(of_all(3, *"abcd"), 100.0, (2, STUCK_IN_IMPORTS), usual=WAITS)
    ((after_s, finding),) = job.found
    assert LATE_S_MIN <= after_s <= LATE_S_MIN + 8.0
    assert (finding.kind, finding.subject.rank, finding.subject.node) == (FindingKind.HANG, 2, "node-c")
    assert (finding.confidence, finding.round, finding.also) == (Confidence.PROBABLE, 3, ())
    assert finding.cause == "never entered the round"
    assert "such starts took" in finding.evidence[-1].says


def test_a_rank_that_the_others_wait_for_behind_their_entry_is_named_by_its_collectives() -> None:
    job = has_trained(*"abcd")
    job.starts(of_all(3, *"abcd"), 100.0, (1, STUCK_IN_A_LOAD), usual=WAITS)
    ((after_s, finding),) = job.found
    assert after_s <= LATE_S_MIN + 8.0
    assert (finding.subject.rank, finding.cause) == (1, "did not reach the collective")


@pytest.mark.parametrize("odd", [STUCK_IN_IMPORTS, STUCK_IN_A_LOAD], ids=["imports", "load"])
def test_nobody_is_late_for_the_first_round(odd: Rank) -> None:
    assert Job().starts(of_all(1, *"abcd"), STARTUP_S, (2, odd), usual=WAITS).found == []


def test_a_start_may_take_five_times_what_earlier_ones_took() -> None:
    slow = Rank(enters_s=20.0, steps_s=40.0)
    job = Job()
    for number in (1, 2):
        job.starts(of_all(number, *"abcd"), 60.0, usual=slow)
    job.starts(of_all(3, *"abcd"), 300.0, (2, STUCK_IN_IMPORTS), usual=Rank(enters_s=10.0, steps_s=NEVER))
    ((after_s, _),) = job.found
    assert STARTS_ALLOWED * 20.0 <= after_s <= STARTS_ALLOWED * 20.0 + 2.0


SLOW_STORAGE: dict[str, Callable[[int], Rank]] = {
    "all slow alike": lambda rank: Rank(enters_s=200.0, steps_s=260.0),
    "one after the other": lambda rank: Rank(enters_s=40.0 + 25.0 * rank, steps_s=200.0),
    "one three times as slow as the others": lambda rank: Rank(40.0 if rank else 120.0, steps_s=150.0),
    "nobody gets in": lambda rank: STUCK_IN_IMPORTS,
    "most do not get in": lambda rank: STUCK_IN_IMPORTS if rank else WAITS,
    "one compiles as long again": lambda rank: Rank(1.0, steps_s=90.0, collectives=30 if rank else 45),
}


@pytest.mark.parametrize("case", SLOW_STORAGE)
def test_what_all_wait_for_names_nobody(case: str) -> None:
    job = has_trained(*"abcd")
    odd = [(rank, SLOW_STORAGE[case](rank)) for rank in range(4)]
    assert job.starts(of_all(3, *"abcd"), 300.0, *odd).found == []


def test_a_node_that_is_new_has_the_time_that_the_first_round_took() -> None:
    cold = Rank(enters_s=60.0, steps_s=80.0)
    job = Job().starts(of_all(1, *"abcd"), 100.0, usual=cold).starts(of_all(2, *"abcd"), 20.0)
    job.starts(of_all(3, *"abce"), 280.0, (3, Rank(enters_s=250.0, steps_s=270.0)))
    assert job.found == []


def test_a_launcher_that_connected_anew_has_cold_caches() -> None:
    cold = Rank(enters_s=60.0, steps_s=80.0)
    job = Job().starts(of_all(1, *"abcd"), 100.0, usual=cold).starts(of_all(2, *"abcd"), 20.0)
    job.detector.observe(Connected("d", "node-d"), job.now)
    assert job.starts(of_all(3, *"abcd"), 200.0, (3, Rank(enters_s=150.0, steps_s=160.0))).found == []


def test_a_worker_that_starts_anew_is_judged_by_those_that_did_and_else_by_the_first_round() -> None:
    job = Job().starts(of_all(1, *"abcd"), 60.0, usual=Rank(enters_s=40.0, steps_s=50.0))
    job.starts(of_all(2, *"abcd"), 20.0)
    again = structs.replace(of_all(3, *"abcd"), fresh_ranks=(1,))
    job.starts(again, 450.0, (1, STUCK_IN_IMPORTS), usual=WAITS)
    alone = 2.0 * STARTS_ALLOWED  # no other starts anew
    assert [after_s for after_s, _ in job.found] == [alone * 40.0], "as in the first round"
    for number in (4, 5):
        job.starts(of_all(number, *"abcd", entry=Entry.RESPAWN), 30.0, usual=Rank(enters_s=5.0, steps_s=9.0))
    job.starts(structs.replace(again, number=6), 400.0, (1, STUCK_IN_IMPORTS), usual=WAITS)
    assert job.found[1][0] == pytest.approx(alone * 5.0)


def test_what_a_member_takes_in_its_second_round_is_no_measure_for_one_that_is_new() -> None:
    """It had filled its caches in the first, of which nobody heard how far it came."""
    job = Job().starts(of_all(1, *"abcd"), 100.0, usual=STUCK_IN_IMPORTS)
    for number in (2, 3):
        job.starts(of_all(number, *"abcd"), 20.0)
    job.starts(of_all(4, *"abce"), 200.0, (3, Rank(enters_s=150.0, steps_s=160.0)))
    assert job.found == []


def test_a_member_that_never_trained_and_takes_long_behind_its_entry_is_not_late() -> None:
    """It compiles, where the others have done so before."""
    job = Job().starts(of_all(1, *"abcd"), 60.0, usual=Rank(steps_s=45.0)).starts(of_all(2, *"abcd"), 20.0)
    job.starts(of_all(3, *"abce"), 3.0, usual=WAITS)
    job.starts(of_all(4, *"abce"), 60.0, (3, Rank(steps_s=50.0, collectives=2)), usual=Rank(steps_s=50.0))
    assert job.found == []


def test_a_restore_from_another_tier_is_another_kind_of_start() -> None:
    job = Job()
    for number in (1, 2):
        job.starts(of_all(number, *"abcd", tier=Tier.NONE), 20.0)
    job.starts(of_all(3, *"abcd", tier=Tier.MEMORY), 300.0, (0, STUCK_IN_A_LOAD), usual=WAITS)
    assert job.found == [], "nobody knows how long such a restore takes"


def test_a_finding_that_mends_nothing_doubles_the_time_until_a_start_succeeds() -> None:
    job = has_trained(*"abcd")
    for number in (3, 4, 5):
        job.starts(of_all(number, *"abcd"), 200.0, (2, STUCK_IN_IMPORTS), usual=WAITS)
    first, second, third = (after_s for after_s, _ in job.found)
    assert second == pytest.approx(2.0 * first, abs=3.0)
    assert third == pytest.approx(4.0 * first, abs=6.0)
    job.starts(of_all(6, *"abcd"), 20.0)
    job.starts(of_all(7, *"abcd"), 100.0, (2, STUCK_IN_IMPORTS), usual=WAITS)
    assert job.found[-1][0] == pytest.approx(first, abs=2.0)


def test_no_start_has_more_than_the_start_up_time_out() -> None:
    job = Job().starts(of_all(1, *"abcd"), 320.0, usual=Rank(enters_s=200.0, steps_s=300.0))
    job.starts(of_all(2, *"abcd"), STARTUP_S + 10.0, (2, STUCK_IN_IMPORTS), usual=WAITS)
    ((after_s, _),) = job.found
    assert after_s == pytest.approx(STARTUP_S, abs=2.0)


def test_whoever_says_how_long_a_step_may_take_means_the_first_one_too() -> None:
    detector = LateStartDetector(policy(startup_timeout_s=STARTUP_S, hang_timeout_s=120.0))
    job = Job(detector).starts(of_all(1, *"abcd"), 20.0)
    job.starts(of_all(2, *"abcd"), 200.0, (2, STUCK_IN_IMPORTS), usual=WAITS)
    assert job.found[0][0] >= 120.0


@pytest.mark.parametrize("how", ["silent", "unreadable"])
def test_silence_proves_nothing(how: str) -> None:
    job = has_trained(*"abcd")
    getattr(job, how).add("node-c")
    assert job.starts(of_all(3, *"abcd"), 200.0, (2, STUCK_IN_IMPORTS), usual=WAITS).found == []


@pytest.mark.parametrize(("phase", "finds"), [(Phase.IDLE, 0), (Phase.CHECKPOINT, 1), (Phase.STARTUP, 1)])
def test_a_rank_that_says_it_does_something_else_is_not_late(phase: Phase, finds: int) -> None:
    job = has_trained(*"abcd")
    odd = Rank(steps_s=NEVER, collectives=2, phase=phase)
    job.starts(of_all(3, *"abcd"), 200.0, (1, odd), usual=WAITS)
    assert len(job.found) == finds
    assert all(after_s >= 60.0 for after_s, _ in job.found if phase is Phase.CHECKPOINT)


def test_a_script_that_publishes_no_steps_is_not_judged() -> None:
    outside = Rank(enters_s=NEVER, steps_s=NEVER)
    job = Job()
    for number in (1, 2, 3):
        job.starts(of_all(number, *"abcd"), STARTUP_S, (0, outside), (1, outside), usual=WAITS)
    assert job.found == []


def test_a_round_that_was_ended_is_not_judged() -> None:
    job = has_trained(*"abcd")
    job.starts(of_all(3, *"abcd"), 5.0, (2, STUCK_IN_IMPORTS), usual=WAITS)
    job.detector.observe(RoundStopped(4), job.now)
    job.now += 100.0
    sample = WAITS.sample(0, 3, 105.0)
    assert job.detector.observe(reported("node-a", sample), job.now) == ()


def test_what_a_node_tells_of_ranks_that_it_does_not_run_counts_for_nothing() -> None:
    job = has_trained(*"abcd")
    job.detector.observe(RoundStarted(of_all(3, *"abcd")), job.now)
    began = job.now
    for _ in range(60):
        job.now += 1.0
        for rank in range(4):
            stopped = Rank(process=ProcessState.STOPPED).sample(rank, 2, 100.0)
            job.tells("node-a", [WAITS.sample(rank, 3, job.now - began)], began)
            job.tells("node-x", [stopped], began)
    assert job.found == []


def test_rounds_of_long_ago_are_forgotten() -> None:
    job = has_trained(*"ab", rounds=ROUNDS_KEPT + 2)
    job.starts(of_all(ROUNDS_KEPT + 3, *"ab"), 5.0, (1, STUCK_IN_IMPORTS), usual=WAITS)
    stopped = Rank(process=ProcessState.STOPPED).sample(1, 2, 100.0)
    for _ in range(10):
        job.now += 1.0
        job.tells("node-b", [stopped], job.now)
    assert job.found == []


def test_nodes_that_are_replaced_again_and_again_are_judged_as_new_ones() -> None:
    job = Job()
    for number in range(1, 12):
        job.starts(of_all(number, f"a{number}", f"b{number}"), 10.0)
    assert job.starts(of_all(12, "a12", "b12"), 60.0, (1, STUCK_IN_IMPORTS), usual=WAITS).found != []


# Replica groups


def in_groups() -> Job:
    """Two groups of two that have trained; the second was lost once, and came back."""
    job = Job().starts(of_groups(1, (1, "ab", True), (1, "cd", True)), 20.0)
    job.starts(of_groups(2, (1, "ab", True), (2, "cd", False)), 5.0)
    job.starts(of_groups(3, (1, "ab", True), (2, "cd", True)), 20.0)
    assert job.found == []
    return job


def test_a_group_that_goes_on_and_does_not_take_up_the_round_is_named() -> None:
    job = in_groups()
    stays_behind = Rank(enters_s=NEVER, steps_s=NEVER)
    shown = of_groups(4, (1, "ab", True), (2, "cd", True), (4, "ef", False))
    job.starts(shown, 100.0, (1, stays_behind), usual=WAITS)
    ((after_s, finding),) = job.found
    assert (finding.subject.rank, finding.subject.member) == (1, "b")
    assert after_s <= LATE_S_MIN + 8.0


@pytest.mark.parametrize("trains", [True, False], ids=["goes on", "is being formed"])
def test_a_stopped_worker_that_no_other_detector_sees_is_named_at_once(trains: bool) -> None:
    job = in_groups()
    shown = of_groups(4, (1, "ab", True), (2 if trains else 4, "cd", trains))
    job.detector.observe(RoundStarted(shown), job.now)
    began = job.now
    for _ in range(10):
        job.now += 1.0
        # It tells of the round before where its group goes on, and else of this one.
        stopped = Rank(process=ProcessState.STOPPED).sample(3, 3 if trains else 4, job.now - began)
        for rank, node in ((0, "node-a"), (1, "node-b"), (2, "node-c")):
            job.tells(node, [WAITS.sample(rank, 4, job.now - began)], began)
        job.tells("node-d", [stopped], began)
    ((after_s, finding),) = job.found
    assert after_s <= STOPPED_S + 2.0
    assert (finding.subject.rank, finding.confidence) == (3, Confidence.CERTAIN)
    assert finding.cause == "the process is stopped"


def test_a_moment_of_being_stopped_is_nothing() -> None:
    job = in_groups()
    shown = of_groups(4, (1, "ab", True), (4, "cd", False))
    job.detector.observe(RoundStarted(shown), job.now)
    for second in range(20):
        job.now += 1.0
        state = ProcessState.STOPPED if second % 3 else ProcessState.RUNNING
        job.tells("node-d", [Rank(process=state).sample(3, 4, second + 1.0)], job.now)
    assert job.found == []


def test_in_a_group_that_is_being_formed_the_one_that_the_others_wait_for_is_named() -> None:
    job = in_groups()
    job.starts(of_groups(4, (1, "ab", True), (4, "cd", False)), 100.0, (3, STUCK_IN_A_LOAD), (2, WAITS))
    ((after_s, finding),) = job.found
    assert (finding.subject.rank, finding.round) == (3, 4)
    assert after_s <= LATE_S_MIN + 8.0


def test_a_group_that_waits_for_the_others_is_not_late() -> None:
    job = in_groups()
    job.starts(of_groups(4, (1, "ab", True), (4, "cd", False)), STARTUP_S, (2, WAITS), (3, WAITS))
    assert job.found == []


def test_a_group_that_is_formed_over_several_rounds_is_one_start() -> None:
    job = in_groups()
    shown = of_groups(4, (1, "ab", True), (3, "ef", True), (4, "cd", False))
    job.starts(shown, 20.0, (4, WAITS), (5, STUCK_IN_IMPORTS))
    began = job.now - 20.0
    # Another group leaves, so that this one has other ranks, and its workers still tell of round 4.
    job.detector.observe(RoundStarted(of_groups(5, (1, "ab", True), (4, "cd", False))), job.now)
    while job.now < began + 60.0:
        job.now += 1.0
        job.tells("node-c", [WAITS.sample(4, 4, job.now - began)], began)
        job.tells("node-d", [STUCK_IN_IMPORTS.sample(5, 4, job.now - began)], began)
    ((after_s, finding),) = job.found
    assert (finding.subject.rank, finding.subject.member) == (3, "d")
    assert after_s <= LATE_S_MIN + 3.0


def test_of_a_group_that_is_held_back_by_one_rank_that_one_is_named() -> None:
    """All its ranks are in the round before: one of them hangs, and the other waits for it to vote."""
    job = in_groups()
    job.detector.observe(RoundStarted(of_groups(4, (1, "ab", True), (2, "cd", True))), job.now)
    began = job.now
    while job.now < began + 60.0:
        job.now += 1.0
        for rank, node in ((0, "node-a"), (1, "node-b")):
            job.tells(node, [WAITS.sample(rank, 4, job.now - began)], began)
        for rank, node, issued in ((2, "node-c", 50), (3, "node-d", 49)):
            behind = Rank().sample(rank, 3, 100.0 + job.now - began)
            job.tells(node, [structs.replace(behind, collective_sequence=issued)], began)
    ((_, finding),) = job.found
    assert (finding.subject.rank, finding.confidence) == (3, Confidence.PROBABLE)


def test_a_simulated_round_with_nobody_in_sight_is_no_start() -> None:
    job = has_trained(*"abcd")
    job.starts(of_all(3), 20.0)
    job.starts(of_all(4, *"abcd"), 100.0, (2, STUCK_IN_IMPORTS), usual=WAITS)
    assert [finding.subject.rank for _, finding in job.found] == [2]
