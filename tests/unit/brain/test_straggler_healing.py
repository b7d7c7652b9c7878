"""What the brain does about ranks that all others wait for."""

import msgspec
import pytest
from story import JOB, Story, running
from trials import answer, asked, examined

from holdfast.api.event import ConditionOver
from holdfast.api.finding import Confidence, FindingKind, SlowCause, Slowness, Subject
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.policy import CordonOn, EvictionBudget, SlowAction, StragglerPolicy, XidAction
from holdfast.api.selftest import TestLevel, Verdict
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.slowness import KEPT_SLOW, LOOKED_MAX_S, with_record
from holdfast.watchdog.brain.state import JobState, SlowStage
from holdfast.watchdog.brain.step import Notify
from holdfast.watchdog.brain.stragglers import WATCHED_S
from holdfast.watchdog.metrics.job import slow_shares

STEP_S, EXCESS_S, TOOK_STEPS = 1.0, 0.3, 10
OF_THE_WORK = (SlowCause.DATA, SlowCause.SHAPE, SlowCause.EVERYBODY)
OF_THE_NODE = (SlowCause.MACHINE, SlowCause.SOFTWARE)
LONG_ENOUGH = int(WATCHED_S / STEP_S) + 2 * TOOK_STEPS + 2


def training(action: SlowAction = SlowAction.SWAP, *, spares: int = 1, **fields: object) -> Story:
    return running(spares=spares, straggler=StragglerPolicy(action=action), **fields)  # type: ignore[arg-type]


def slow(story: Story, node: int, cause: SlowCause = SlowCause.MACHINE, **fields: object) -> Story:
    """The detector found the rank on a node slow, ten steps after it had become so."""
    known = {
        "slow": Slowness(cause, STEP_S, EXCESS_S),
        "cause": f"slow: {cause.value}",
        "step": story.state.step,
        "began_at": story.now - TOOK_STEPS * STEP_S,
    }
    assert story.state.policy is not None
    may_act = story.state.policy.straggler.action is not SlowAction.REPORT and cause in OF_THE_NODE
    known["asks"] = None if may_act else XidAction.WATCH
    if cause is SlowCause.EVERYBODY:
        known |= {"subject": Subject(JOB), "confidence": Confidence.UNKNOWN}
    return story.find(FindingKind.STRAGGLER, node, **{**known, **fields})


def swapped(action: SlowAction = SlowAction.SWAP, **fields: object) -> Story:
    """The rank of node 2 is with the spare, which has trained one step."""
    return slow(training(action, **fields), 2).save(50).run(51, restored=50)  # type: ignore[arg-type]


def trains_on(story: Story, steps: int = LONG_ENOUGH) -> Story:
    """So many more steps, one a second."""
    for _ in range(steps):
        story.now += STEP_S
        assert story.state.step is not None
        story.run_on(story.state.step + 1)
    return story


def paged(story: Story) -> list[str]:
    return [each.text for each in story.effects if isinstance(each, Notify)]


def stages(story: Story) -> list[SlowStage]:
    return [each.stage for each in story.state.slow]


@pytest.mark.parametrize("cause", OF_THE_WORK)
def test_what_no_other_node_would_mend_is_told_and_nothing_moves(cause: SlowCause) -> None:
    story = training(SlowAction.EVICT)
    before = story.state
    slow(story, 2, cause)
    assert (story.incident.kind, story.incident.state) == (FindingKind.STRAGGLER, IncidentState.RECOVERED)
    assert "nothing was changed" in story.incident.timeline[-1].what
    trains_on(story)
    after = story.state
    assert (after.round, after.departures, after.saving) == (before.round, (), before.saving)
    assert (after.avoided, after.suspicions, after.trials, paged(story)) == ((), (), {}, [])


@pytest.mark.parametrize("cause", OF_THE_NODE)
def test_a_node_that_may_be_the_reason_is_tested_and_no_more_where_the_spec_says_report(cause: SlowCause) -> None:
    story = slow(examined(3, spares=1), 2, cause)
    number = story.round.number
    assert story.incident.state is IncidentState.RECOVERED
    assert "straggler.action is Report" in story.incident.timeline[-1].what
    trial = story.state.trials["node-2"]
    assert (trial.level, trial.bars, trial.began) == (TestLevel.LIGHT, False, None)
    trains_on(story)
    assert (story.round.number, story.state.departures, paged(story)) == (number, (), [])


def test_without_self_tests_nobody_is_tested() -> None:
    assert slow(training(SlowAction.REPORT), 2).state.trials == {}


@pytest.mark.parametrize("cause", OF_THE_NODE)
def test_a_spare_takes_the_ranks_once_the_round_is_saved_and_no_step_is_lost(cause: SlowCause) -> None:
    story = slow(training(), 2, cause)
    number = story.round.number
    assert (story.incident.state, stages(story)) == (IncidentState.OPEN, [SlowStage.LEAVING])
    story.run_on(52)
    assert (story.round.number, story.wanted[-1].round) == (number, number)
    story.save(52)
    assert story.members == ["node-1", "node-4", "node-3"]
    assert story.round.restore.step == 52
    assert story.state.restarts == ()
    story.run(53, restored=52)
    incident = story.incident
    assert (incident.state, incident.rung, incident.lost_steps) == (IncidentState.RECOVERED, Rung.SWAP, 0)
    assert incident.recovered_round == story.round.number
    does = f"round {story.round.number}: rank 1 to node node-4, node node-2 stays as a spare"
    assert incident.actions[-1].does == does
    assert story.state.storage_restores == 0
    # It is not given up: nobody removes its pod, and nobody is kept away from it.
    assert (story.plan.release, story.plan.avoid, story.state.departures) == ((), (), ())


def test_the_node_that_was_left_is_tested_as_a_spare() -> None:
    story = slow(examined(3, spares=1, straggler=StragglerPolicy(action=SlowAction.SWAP)), 2)
    story.save(50).run(51, restored=50)
    assert "was slow" in asked(story)["node-2"].reason
    answer(story, 2, Verdict.FAILED)
    assert [order.node for order in story.state.avoided] == ["node-2"]
    trains_on(story)
    assert story.state.slow == ()


def test_slowness_that_follows_the_ranks_exonerates_the_node_and_moves_nothing_more() -> None:
    story = swapped(SlowAction.EVICT)
    number = story.round.number
    slow(trains_on(story, 20), 4)
    assert stages(story) == [SlowStage.FOLLOWED]
    [incident] = story.state.incidents
    assert "followed rank 1 from node node-2 to node node-4" in incident.note
    assert (incident.culprit.node, incident.culprit.rank) == (None, 1)
    slow(trains_on(story, 200), 4)
    assert (len(story.state.incidents), story.round.number) == (1, number)
    assert (story.state.avoided, story.state.suspicions, paged(story)) == ((), (), [])
    # Its standing is what it was: it is the first spare to be given ranks again.
    story.join(5).lose(1)
    assert "node-2" in story.members


def test_slowness_that_stays_with_the_node_makes_it_the_last_choice() -> None:
    story = trains_on(swapped())
    assert stages(story) == [SlowStage.STAYED]
    assert "the slowness stayed with node node-2: rank 1 was not slow elsewhere" in story.incident.note
    assert (story.state.avoided, story.state.evictions) == ((), ())
    story.join(5).lose(1)
    assert story.members == ["node-5", "node-4", "node-3"]
    story.run(200).lose(3)
    assert story.members == ["node-5", "node-4", "node-2"]


def test_and_evicts_it_where_the_spec_says_so() -> None:
    story = trains_on(swapped(SlowAction.EVICT))
    number = story.round.number
    assert [order.node for order in story.state.avoided] == ["node-2"]
    assert story.state.eviction_count == 1
    assert story.incident.actions[-1].does == "evict node node-2"
    assert (story.state.slow, story.plan.release) == ((), ("node-2",))
    trains_on(story)
    assert (story.round.number, story.state.phase) == (number, JobPhase.RUNNING)


@pytest.mark.parametrize("cordon_on", CordonOn)
def test_what_is_slow_for_one_job_is_taken_from_no_other(cordon_on: CordonOn) -> None:
    story = trains_on(swapped(SlowAction.EVICT, cordon_on=cordon_on))
    assert (story.plan.release, story.plan.cordon) == (("node-2",), ())


def test_it_is_evicted_within_the_budget_and_stays_a_spare_beyond_it() -> None:
    story = trains_on(swapped(SlowAction.EVICT, spares=2, evictions=EvictionBudget(count=1)).xid(3, 79).run(60))
    assert [order.node for order in story.state.avoided] == ["node-3"]
    before = len(story.state.evictions)
    trains_on(story, 2 * LONG_ENOUGH)
    assert len(story.state.evictions) == before
    told = story.state.incidents[0]
    assert "node node-2 stays as a spare: blast radius" in told.note
    assert paged(story) == []


def test_nothing_is_judged_before_ranks_were_watched_for_longer_than_finding_them_took() -> None:
    story = swapped(SlowAction.EVICT)
    record = story.state.slow[0]
    story.state = msgspec.structs.replace(
        story.state, slow=(msgspec.structs.replace(record, took_s=100.0 * STEP_S),)
    )
    assert stages(trains_on(story, 300)) == [SlowStage.MOVED]
    assert story.state.avoided == ()
    assert stages(trains_on(story, 30)) == []


def test_as_many_steps_as_the_spec_asks_for_are_watched() -> None:
    policy = StragglerPolicy(action=SlowAction.SWAP, sustained=300)
    story = slow(running(spares=1, straggler=policy), 2).save(50).run(51, restored=50)
    assert stages(trains_on(story, 290)) == [SlowStage.MOVED]
    assert stages(trains_on(story, 20)) == [SlowStage.STAYED]


def test_without_a_spare_it_is_told_and_moves_once_one_is_there() -> None:
    story = slow(training(spares=0), 2)
    assert story.incident.state is IncidentState.RECOVERED
    assert "no spare is ready" in story.incident.timeline[-1].what
    assert (story.state.departures, paged(story)) == ((), [])
    story.resubmit(spares=1).join(4)
    [incident] = story.state.incidents
    assert (incident.state, stages(story)) == (IncidentState.OPEN, [SlowStage.LEAVING])
    story.save(50).run(51, restored=50)
    assert story.members == ["node-1", "node-4", "node-3"]
    assert story.incident.state is IncidentState.RECOVERED


def test_a_spare_that_is_cold_or_was_slow_itself_is_none() -> None:
    story = training(spares=0).resubmit(spares=2)
    slow(story.join(4, warm=False), 2)
    assert stages(story) == [SlowStage.TOLD]
    story = trains_on(swapped())
    slow(story, 3)  # the only spare is node 2
    assert stages(story) == [SlowStage.STAYED, SlowStage.TOLD]
    assert story.state.departures == ()


@pytest.mark.parametrize("action", [SlowAction.SWAP, SlowAction.EVICT])
def test_one_at_a_time_is_moved_and_each_suspect_is_an_incident_of_its_own(action: SlowAction) -> None:
    story = slow(slow(training(action, spares=2), 2), 3)
    assert stages(story) == [SlowStage.LEAVING, SlowStage.TOLD]
    assert len(story.state.incidents) == 2
    story.save(50).run(51, restored=50)
    assert story.members == ["node-1", "node-4", "node-3"]
    slow(story, 3)
    assert stages(story) == [SlowStage.MOVED, SlowStage.TOLD]
    trains_on(story)
    assert stages(story)[-1] is SlowStage.LEAVING


def test_what_a_swap_left_open_is_not_tried_again() -> None:
    """The spare that had the ranks is lost, and the suspect has to take them back."""
    story = swapped()
    story.lose(4).run(60, restored=51)
    assert story.members == ["node-1", "node-2", "node-3"]
    assert "not known whether the slowness stayed" in story.state.incidents[0].note
    story.join(5)
    number = story.round.number
    slow(trains_on(story), 2)
    assert (story.round.number, story.state.departures) == (number, ())
    assert "a swap was tried before" in str(story.state.incidents[-1].timeline) or stages(story) == [
        SlowStage.TOLD
    ]


def test_another_round_with_the_same_ranks_is_watched_from_its_first_step_on() -> None:
    story = trains_on(swapped(), LONG_ENOUGH - 10)
    story.die(1).run(100, restored=51)
    assert stages(trains_on(story, 20)) == [SlowStage.MOVED]
    assert stages(trains_on(story)) == [SlowStage.STAYED]


def test_a_round_that_cannot_be_saved_is_not_left() -> None:
    story = slow(training(), 2)
    number = story.round.number
    story.wait(61)
    assert (story.round.number, stages(story), story.state.departures) == (number, [SlowStage.TOLD], ())
    assert "no step is to be lost" in story.incident.timeline[-1].what
    assert story.incident.state is IncidentState.RECOVERED
    slow(trains_on(story), 2)
    assert (story.round.number, stages(story)) == (number, [SlowStage.TOLD])


def test_a_script_that_cannot_save_is_not_moved() -> None:
    story = training().run(51, reentrant=False)
    number = story.round.number
    slow(story, 2)
    assert (story.round.number, story.state.departures) == (number, ())


def test_a_spare_that_goes_before_the_round_is_saved_leaves_all_as_it_is() -> None:
    story = slow(training(), 2)
    number = story.round.number
    story.lose(4)
    assert (story.round.number, stages(story), story.state.departures) == (number, [SlowStage.TOLD], ())
    assert "no spare is ready any more" in story.state.incidents[0].timeline[-1].what
    story.save(50)
    assert story.round.number == number
    story.join(5)
    assert stages(story) == [SlowStage.LEAVING]


def test_a_fault_takes_the_spare_first() -> None:
    story = slow(training(), 2)
    story.lose(1)
    assert story.members == ["node-4", "node-2", "node-3"]
    assert stages(story) == [SlowStage.TOLD]
    story.run(51, restored=50)
    assert {each.state for each in story.state.incidents} == {IncidentState.RECOVERED}


def test_a_spec_that_says_report_now_calls_it_off() -> None:
    story = slow(training(), 2)
    number = story.round.number
    story.resubmit(straggler=StragglerPolicy())
    assert (stages(story), story.state.departures) == ([SlowStage.TOLD], ())
    story.save(50)
    assert story.round.number == number


def test_swaps_are_bounded_as_evictions_are() -> None:
    story = training(spares=4, evictions=EvictionBudget(count=1))
    slow(story, 2).save(50).run(51, restored=50)
    number = story.round.number
    slow(trains_on(story), 3)
    assert story.round.number == number
    assert "as many as the eviction budget allows" in story.incident.timeline[-1].what


def test_several_nodes_at_once_and_nobody_in_particular_are_only_told() -> None:
    story = training(SlowAction.EVICT, spares=2)
    also = (Subject(JOB, node="node-3", member="node-3", rank=2),)
    slow(story, 2, also=also)
    slow(story, 1, confidence=Confidence.UNKNOWN)
    slow(story, 3, asks=XidAction.WATCH)
    assert (story.state.departures, set(stages(story))) == ((), {SlowStage.TOLD})


def test_a_watchdog_that_restarts_at_any_moment_goes_on() -> None:
    def restarted(story: Story) -> Story:
        story.state = msgspec.msgpack.decode(msgspec.msgpack.encode(story.state), type=JobState)
        return story.restart_watchdog().join(*range(1, 5))

    story = restarted(slow(training(SlowAction.EVICT), 2))
    story.save(50)
    assert story.members == ["node-1", "node-4", "node-3"]
    story = trains_on(restarted(story.run(51, restored=50)), 20)
    assert stages(restarted(story)) == [SlowStage.MOVED]
    assert [order.node for order in trains_on(story).state.avoided] == ["node-2"]


def test_what_it_cost_is_told_from_its_begin_on_and_each_time_that_it_has_doubled() -> None:
    story = slow(training(SlowAction.REPORT), 2)
    slowed = story.incident.slowed
    assert slowed is not None
    assert (slowed.steps, slowed.rank_s) == (TOOK_STEPS, pytest.approx(TOOK_STEPS * EXCESS_S * 3))
    told = {story.incident.slowed}
    for _ in range(1000):
        told.add(trains_on(story, 1).incident.slowed)
    assert len(told) == 7  # 20, 40 ... 640
    assert story.incident.slowed.steps >= 1000 / 2
    story.die(1)
    assert story.state.incidents[0].slowed.steps == 1000 + TOOK_STEPS
    assert story.state.slowed_rank_s == pytest.approx((1000 + TOOK_STEPS) * EXCESS_S * 3)
    assert story.state.incidents[0].slowed.rank_hours == pytest.approx(story.state.slowed_rank_s / 3600.0)


def test_the_cost_ends_with_the_swap() -> None:
    story = swapped()
    cost = story.incident.slowed
    trains_on(story)
    assert story.state.incidents[0].slowed == cost


def test_the_same_again_is_the_same_incident_and_much_later_another() -> None:
    story = slow(training(SlowAction.REPORT), 2)
    story.die(1).run(60, restored=50)
    slow(trains_on(story, 10), 2)
    assert [each.kind for each in story.state.incidents].count(FindingKind.STRAGGLER) == 1
    story.die(1).run(80, restored=60)
    story.now += 4000
    slow(story, 2)
    assert [each.kind for each in story.state.incidents].count(FindingKind.STRAGGLER) == 2
    assert len(story.state.slow) == 1


def test_a_return_makes_it_a_node_like_any_other() -> None:
    story = trains_on(swapped())
    assert story.ask(InterventionAction.RETURN, node="node-2").state is InterventionState.DONE
    assert story.state.slow == ()
    story.join(5).lose(1)
    assert "node-2" in story.members


def test_a_node_that_is_gone_is_forgotten() -> None:
    assert swapped().gone(2).state.slow == ()


def test_a_death_on_the_node_heals_as_ever_and_moves_the_ranks_on_the_way() -> None:
    story = slow(training(), 2)
    story.die(2)
    assert story.members == ["node-1", "node-4", "node-3"]
    assert stages(story) == [SlowStage.MOVED]
    story.run(51, restored=40)
    assert {each.state for each in story.state.incidents} == {IncidentState.RECOVERED}


def test_an_observed_job_tells_what_would_be_done() -> None:
    story = slow(training(SlowAction.SWAP, observe=True), 2)
    assert story.incident.state is IncidentState.OBSERVED
    assert any("give the ranks of node node-2 to a spare" in each.does for each in story.incident.actions)
    assert (story.state.departures, story.state.slow) == ((), ())


@pytest.mark.parametrize("step_s", [0.0, 5e-324, 1e-300, 9e-10, -1.0])
def test_steps_that_take_no_time_are_reckoned_with_no_more_than_none(step_s: float) -> None:
    story = slow(training(), 2, slow=Slowness(SlowCause.MACHINE, step_s, EXCESS_S)).save(50).run(51, restored=50)
    assert story.state.slow[0].slow.share == 0.0
    assert stages(trains_on(story)) == [SlowStage.STAYED]


def test_what_was_proved_of_a_node_outlives_what_was_only_told_of_others() -> None:
    story = trains_on(swapped())
    proved = story.state.slow[0]
    told = tuple(
        msgspec.structs.replace(proved, incident=f"inc-{number}", stage=SlowStage.TOLD, tries=(), ranks=(number,))
        for number in range(2 * KEPT_SLOW)
    )
    state = story.state
    for each in told:
        state = with_record(state, each)
    assert state.slow == (proved, *told[-KEPT_SLOW + 1 :])


def over(story: Story, node: int, cause: SlowCause = SlowCause.MACHINE) -> Story:
    """The detector finds the rank on a node slow no more."""
    story.tell(ConditionOver(f"node-{node}", f"slow: {cause.value.lower()}", "at step 60"))
    return story


def test_what_is_over_costs_no_more_and_is_not_moved_when_a_spare_comes() -> None:
    story = over(trains_on(slow(training(spares=0), 2), 20), 2)
    slowed = story.incident.slowed
    assert slowed is not None
    assert slowed.steps == 20 + TOOK_STEPS, "all of it is told"
    assert "node node-2 is slow no more: at step 60" in story.incident.note
    trains_on(story.resubmit(spares=1).join(4))
    assert (story.incident.slowed, stages(story), story.state.departures) == (slowed, [SlowStage.TOLD], ())
    slow(story, 2)
    assert (len(story.state.incidents), stages(story)) == (1, [SlowStage.LEAVING])


def test_what_is_over_before_the_round_is_saved_keeps_its_ranks() -> None:
    story = slow(training(SlowAction.EVICT), 2)
    number = story.round.number
    over(story, 2, SlowCause.DATA)
    assert stages(story) == [SlowStage.LEAVING], "of another cause"
    over(story, 2).save(50)
    assert (story.round.number, stages(story), story.state.departures) == (number, [SlowStage.TOLD], ())
    assert story.incident.state is IncidentState.RECOVERED
    assert (trains_on(story).state.avoided, story.incident.slowed) == ((), story.incident.slowed)


def test_ranks_are_watched_for_twice_as_long_as_their_round_was_looked_at() -> None:
    story = trains_on(training(SlowAction.EVICT), 400)
    slow(story, 2).save(450).run(451, restored=450)
    assert stages(trains_on(story, 800 + int(WATCHED_S) - 10)) == [SlowStage.MOVED]
    assert stages(trains_on(story, 40)) == []
    story = trains_on(training(SlowAction.EVICT), 10)
    story.now += 100 * LOOKED_MAX_S
    slow(story, 2).save(60).run(61, restored=60)
    story.now += 2 * LOOKED_MAX_S + WATCHED_S
    assert stages(trains_on(story, 2 * int(LOOKED_MAX_S) + 100)) == [], "not for days"


def test_what_followed_the_ranks_is_shown_where_they_are_and_ends_there() -> None:
    story = slow(trains_on(swapped(SlowAction.EVICT), 20), 4)
    assert [*slow_shares(story.state)] == [("Machine", "node-4", "1")], "node 2 is exonerated"
    assert [*slow_shares(over(story, 4).state)] == []
