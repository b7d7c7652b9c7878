"""When checkpoints are due: the formulas at published points, and what the brain asks for."""

import pytest
from story import Story

from holdfast.api.event import CheckpointRecorded, RestoreReported
from holdfast.api.intervention import InterventionAction
from holdfast.api.policy import CheckpointInterval, MemoryPolicy
from holdfast.api.round import Tier
from holdfast.api.status import Cadence
from holdfast.planner.cadence import daly_s, young_s
from holdfast.watchdog.brain.saves import between_failures_s, cadence_of

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0


def loss_ratio(levels: tuple[tuple[float, float, float], ...]) -> float:
    """What several levels of checkpoints cost together, as a part of the time.

    Each level is (cost of one, interval, failures per second that need it): its checkpoints cost their share of
    the interval, its failures half an interval each. The levels are independent to this order, so each has
    Young's interval of its own failures as its best.
    """
    return sum(cost / every + failures * every / 2.0 for cost, every, failures in levels)


class TestFormulas:
    @pytest.mark.parametrize(
        ("between", "printed_minutes", "within"),
        [(24 * HOUR, 117.0, 0.5), (6 * HOUR, 57.0, 0.5), (15 * MINUTE, 9.1, 0.05)],
    )
    def test_the_higher_order_meets_its_authors_figures(
        self, between: float, printed_minutes: float, within: float
    ) -> None:
        """Source: https://doi.org/10.1016/j.future.2004.11.016, checkpoints that cost 5 minutes."""
        assert daly_s(5 * MINUTE, between) / MINUTE == pytest.approx(printed_minutes, abs=within)

    def test_the_first_order_is_a_third_too_long_where_failures_are_frequent(self) -> None:
        assert young_s(5 * MINUTE, 15 * MINUTE) / daly_s(5 * MINUTE, 15 * MINUTE) == pytest.approx(1.34, abs=0.01)

    def test_where_checkpoints_take_longer_than_failures_let_them_the_interval_is_the_time_between(self) -> None:
        assert daly_s(10 * MINUTE, 4 * MINUTE) == 4 * MINUTE

    def test_both_agree_where_checkpoints_cost_next_to_nothing(self) -> None:
        assert daly_s(0.01, DAY) == pytest.approx(young_s(0.01, DAY), rel=1e-3)

    @pytest.mark.parametrize("factor", [0.5, 0.8, 1.25, 2.0])
    def test_of_two_levels_each_is_best_at_its_own_optimum(self, factor: float) -> None:
        memory, storage = (0.05, 1 / (3 * HOUR)), (4.0, 1 / (40 * HOUR))
        best = tuple((cost, young_s(cost, 1 / rate), rate) for cost, rate in (memory, storage))
        other = (best[0], (best[1][0], best[1][1] * factor, best[1][2]))
        assert loss_ratio(best) < loss_ratio(other)

    def test_the_published_rate_gives_the_published_time_between_failures(self) -> None:
        """16,384 GPUs on 2,048 nodes: 1.8 hours. Source: https://arxiv.org/abs/2410.21680"""
        assert between_failures_s(2048, 0, 0.0) / HOUR == pytest.approx(1.8, abs=0.05)

    def test_what_was_seen_soon_outweighs_the_published_rate(self) -> None:
        assert between_failures_s(2, 9, 10 * HOUR) < 200 * HOUR
        assert between_failures_s(2048, 0, 100 * HOUR) == pytest.approx(101.8 * HOUR, rel=0.01)


def paced(interval: CheckpointInterval | None = CheckpointInterval(), nodes: int = 2, **fields: object) -> Story:  # noqa: B008
    story = Story(nodes_max=nodes, interval=interval, **fields)
    return story.join(*range(1, nodes + 1)).run(1)


def committed(story: Story, step: int, stall_s: float | None = 0.5, took_s: float | None = 3.0) -> Story:
    number = story.wanted[-1].number if story.state.saving else None
    story.tell(CheckpointRecorded(story.round.number, step, "/ckpt", number, stall_s, took_s))
    return story


def told_later(steps: int) -> Story:
    """Its round began before the job file gave a number of steps: the ranks know of none."""
    return paced(None).resubmit(interval=CheckpointInterval(steps=steps), generation=2)


def cadence(story: Story) -> Cadence:
    found = cadence_of(story.state)
    assert found is not None
    return found


class TestTelling:
    def test_ranks_that_know_a_number_of_steps_save_without_being_asked(self) -> None:
        story = paced(CheckpointInterval(steps=10)).run_on(35)
        assert story.round.save_every == 10
        assert cadence(story).steps == 10
        assert story.wanted == []

    def test_a_number_of_steps_that_came_later_is_told_with_the_next_round(self) -> None:
        story = told_later(10)
        assert story.round.save_every is None
        story.die(1)
        assert story.round.save_every == 10

    @pytest.mark.parametrize("interval", [None, CheckpointInterval(), CheckpointInterval(seconds=600.0)])
    def test_without_a_number_of_steps_ranks_are_told_none(self, interval: CheckpointInterval | None) -> None:
        assert paced(interval).round.save_every is None


class TestAsking:
    def test_the_script_alone_decides_where_the_job_says_nothing(self) -> None:
        story = paced(None).wait(10 * HOUR)
        assert story.wanted == []
        assert cadence_of(story.state) is None

    def test_the_first_comes_soon_because_it_tells_what_one_costs(self) -> None:
        story = paced().wait(59)
        assert story.wanted == []
        assert len(story.wait(2).wanted) == 1

    def test_the_next_comes_when_cost_and_faults_suggest(self) -> None:
        story = committed(paced(nodes=100, nodes_min=100).wait(61), 60)
        every_s = cadence(story).every_s
        assert every_s is not None
        assert every_s == pytest.approx(daly_s(0.5, between_failures_s(100, 0, 61)), rel=0.01)
        assert len(story.wait(every_s - 5).wanted) == 1
        assert len(story.wait(10).wanted) == 2

    def test_the_reason_names_cost_faults_and_outcome(self) -> None:
        story = committed(paced(nodes=100, nodes_min=100).wait(61), 60)
        assert cadence(story).says == (
            "every 364 s: one costs 0.5 s, and 100 nodes need one every 36.9 h (0 needed so far), "
            "for which 364 s is best"
        )

    def test_faults_that_needed_storage_bring_the_next_one_closer(self) -> None:
        story = committed(paced(nodes=100, nodes_min=100, memory=MemoryPolicy()).wait(61), 60)
        before = cadence(story).every_s
        story.run_on(100).die(1)
        story.tell(RestoreReported(story.round.number, 60))
        assert story.state.storage_restores == 1
        assert before is not None
        assert (cadence(story).every_s or 0) < before

    def test_faults_that_memory_healed_do_not(self) -> None:
        story = committed(paced(nodes=100, nodes_min=100, memory=MemoryPolicy()).wait(61), 60)
        story.run_on(100).die(1)
        story.tell(RestoreReported(story.round.number, 99, tier=Tier.MEMORY))
        assert story.state.storage_restores == 0

    @pytest.mark.parametrize(("stall_s", "every_s"), [(1e-6, 60.0), (3000.0, 3600.0), (None, 3600.0)])
    def test_the_interval_has_bounds(self, stall_s: float | None, every_s: float) -> None:
        story = committed(paced().wait(61), 60, stall_s=stall_s)
        assert cadence(story).every_s == every_s

    def test_one_is_not_asked_for_before_the_last_can_be_durable(self) -> None:
        story = committed(paced().wait(61), 60, stall_s=1e-6, took_s=200.0)
        assert cadence(story).every_s == 400.0

    def test_a_script_that_never_answers_is_asked_once_an_hour(self) -> None:
        assert len(paced().wait(59 * MINUTE).wanted) == 1
        assert len(paced().wait(3 * HOUR).wanted) == 3

    def test_a_script_that_never_answers_is_not_asked_at_every_step(self) -> None:
        story = told_later(10)
        for step in range(10, 130):
            story.wait(60).run_on(step)
        assert len(story.wanted) == 2

    def test_rounds_that_are_shorter_than_the_interval_do_not_put_it_off(self) -> None:
        story = committed(paced(CheckpointInterval(seconds=600.0), memory=MemoryPolicy()).wait(601), 100)
        for step in range(110, 170, 10):
            story.wait(110).run_on(step).die(1 + step // 10 % 2).run(step + 1, restored=step)
        # Round 8 is asked for what round 7, which broke, could not give any more.
        assert [each.round for each in story.wanted] == [2, 7, 8]

    def test_no_faults_while_suspended_say_nothing_of_faults(self) -> None:
        story = committed(paced(nodes=100, nodes_min=100).wait(61), 60)
        before = cadence(story).every_s
        story.ask(InterventionAction.PAUSE)
        committed(story, 61).wait(1000 * HOUR)
        story.ask(InterventionAction.RESUME, "i2")
        committed(story.run(62, restored=61), 63)
        assert cadence(story).every_s == pytest.approx(before, rel=0.01)

    def test_what_a_round_could_not_answer_any_more_is_asked_of_the_next(self) -> None:
        story = paced(CheckpointInterval(seconds=600.0), memory=MemoryPolicy()).wait(601).run_on(50)
        assert len(story.wanted) == 1
        story.die(1).run(51, restored=50)
        assert [each.round for each in story.wanted] == [2, 3]

    def test_a_fixed_time_is_kept(self) -> None:
        story = paced(CheckpointInterval(seconds=600.0)).wait(601)
        assert len(story.wanted) == 1
        committed(story, 10)
        assert len(story.wait(598).wanted) == 1
        assert len(story.wait(4).wanted) == 2

    def test_a_fixed_number_of_steps_is_kept(self) -> None:
        story = told_later(500).run_on(499)
        assert story.wanted == []
        story.run_on(503)
        assert len(story.wanted) == 1
        committed(story, 504).run_on(1003)
        assert len(story.wanted) == 1
        assert len(story.run_on(1004).wanted) == 2
