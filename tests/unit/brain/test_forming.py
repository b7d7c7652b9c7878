"""Forming: who takes which ranks, and when."""

import pytest
from story import Story, running

from holdfast.api.event import MemberEntered, MemberJoined
from holdfast.api.round import Entry, Idle, Reentry, Restore, Tier
from holdfast.api.status import JobPhase


def test_the_first_round_forms_at_once_when_the_maximum_has_joined() -> None:
    story = Story(nodes_max=2).join(1, 2)
    assert story.members == ["node-1", "node-2"]
    assert story.round.entry is Entry.RESPAWN
    assert story.state.phase is JobPhase.FORMING


def test_the_first_round_waits_for_the_rest_and_starts_with_the_minimum_after_the_grace() -> None:
    story = Story(nodes_max=3, nodes_min=2, form_grace_s=10.0).join(1, 2)
    assert isinstance(story.state.desired, Idle)
    story.wait(9.9)
    assert story.state.round is None
    story.wait(0.2)
    assert story.members == ["node-1", "node-2"]


def test_no_round_forms_below_the_minimum_however_long_it_takes() -> None:
    story = Story(nodes_max=3, nodes_min=2).join(1).wait(1000)
    assert story.state.phase is JobPhase.PENDING
    assert story.state.reason == "1 of 3 members joined"


def test_ranks_are_numbered_member_by_member() -> None:
    story = Story(nodes_max=2, processes_per_node=4).join(1, 2)
    assert [(share.first_rank, share.local_size) for share in story.round.ranks] == [(0, 4), (4, 4)]
    assert story.round.world_size == 8


def test_a_world_that_is_no_multiple_of_the_model_axes_is_never_formed() -> None:
    story = Story(nodes_max=4, nodes_min=1, processes_per_node=1, model_ranks=2).join(1, 2, 3).wait(60)
    assert story.round.world_size == 2


def test_a_member_with_another_number_of_processes_gets_no_ranks() -> None:
    story = Story(nodes_max=2, processes_per_node=4)
    story.join(1)
    (member,) = story.state.members
    assert member.local_size == 4
    from holdfast.api.event import MemberJoined

    story.tell(MemberJoined("odd", "odd", "a", "10.0.0.9", 3, (1,), warm=True))
    assert [each.name for each in story.state.eligible()] == ["node-1"]


def test_the_store_moves_to_another_port_with_every_round() -> None:
    story = running(2)
    before = story.round.endpoint
    story.die(1)
    assert story.round.endpoint.host == before.host
    assert story.round.endpoint.port != before.port


def test_an_earlier_runs_checkpoint_is_looked_for_when_none_is_on_record() -> None:
    story = Story(nodes_max=1).join(1)
    assert story.round.restore == Restore(Tier.CHECKPOINT, None, "/ckpt", owner="team/run@1000.000")


def test_a_newcomer_is_taken_in_right_after_a_checkpoint() -> None:
    story = running(3, step=45, commit=40)
    story.lose(3).run(46, restored=40)
    assert story.members == ["node-1", "node-2"]
    story.join(4)
    assert story.members == ["node-1", "node-2"], "not in the middle of an interval"
    story.commit(50)
    assert story.members == ["node-1", "node-2", "node-4"]
    assert story.round.restore.step == 50
    assert story.state.restart_count == 1, "growth is no restart"


def test_a_newcomer_that_is_not_warm_does_not_stop_training() -> None:
    story = running(3).lose(3).run(46)
    story.join(4, warm=False).commit(60)
    assert story.members == ["node-1", "node-2"]


def test_after_everybody_left_the_job_forms_anew_and_resumes() -> None:
    story = running(2, step=50, commit=40)
    story.leave(1).leave(2)
    story.join(1, boot="b")
    assert isinstance(story.state.desired, Idle), "it waits for the second one"
    story.join(2, boot="b")
    assert sorted(story.members) == ["node-1", "node-2"]
    assert story.round.restore.step == 40
    assert story.state.incidents == ()


def test_the_job_succeeds_when_every_member_finished() -> None:
    story = running(2).finish()
    assert story.state.phase is JobPhase.SUCCEEDED


def test_a_script_that_publishes_no_steps_is_running_and_takes_newcomers_in_at_once() -> None:
    story = Story(nodes_max=2, form_grace_s=1.0).join(1).wait(2).run(reentrant=False)
    assert story.state.phase is JobPhase.RUNNING
    story.join(2)
    assert story.members == ["node-1", "node-2"]


def test_a_finished_job_knows_its_last_step() -> None:
    from holdfast.api.event import MemberFinished

    story = running(1, step=294)
    story.tell(MemberFinished("node-1", story.round.number, last_step=300))
    assert (story.state.phase, story.state.step) == (JobPhase.SUCCEEDED, 300)


def test_numbers_go_on_from_what_a_launcher_has_seen_even_when_the_store_was_lost() -> None:
    story = Story(nodes_max=2).join(1)
    story.tell(
        MemberJoined("node-2", "node-2", "a", "10.0.0.2", 1, (7020, 7021), warm=True, held_round=40, shown=41)
    )
    assert story.round.number == 42


def test_members_that_come_one_after_the_other_are_waited_for_but_not_for_ever() -> None:
    story = Story(nodes_max=20, nodes_min=2, form_grace_s=10.0)
    for number in range(1, 6):
        story.join(number).wait(8)
    assert story.state.round is None, "each newcomer has the others wait a little longer"
    for number in range(6, 9):
        story.join(number).wait(8)
    assert len(story.members) == 8, "a minute is enough for anybody"


def test_newcomers_without_checkpoints_are_taken_in_together_once_the_round_has_stood_a_while() -> None:
    story = Story(nodes_max=4, nodes_min=1, form_grace_s=10.0).join(1).wait(10.1).run(5, reentrant=False)
    first = story.round.number
    story.join(2, 3)
    assert story.round.number == first
    story.wait(10.1)
    assert len(story.members) == 3
    assert story.round.number == first + 1


def bound(story: Story, reentry: Reentry, *members: str) -> Story:
    """Workers of these members (all with ranks, when none is named) say what their processes can go on to."""
    for name in members or story.members:
        story.tell(MemberEntered(name, story.round.number, reentrant=True, reentry=reentry, because="a framework"))
    return story


@pytest.mark.parametrize(
    ("reentry", "entry"),
    [
        (Reentry.ANY_WORLD, Entry.REENTER),
        (Reentry.SAME_WORLD, Entry.RESPAWN),
        (Reentry.NEVER, Entry.RESPAWN),
    ],
)
def test_a_shrunken_world_gets_new_processes_where_the_old_ones_cannot_go_on_to_it(
    reentry: Reentry, entry: Entry
) -> None:
    story = bound(running(3, nodes_min=1), reentry).leave(1)
    assert (story.round.world_size, story.round.entry) == (2, entry)
    assert ("all workers start anew: a framework" in story.round.reason) == (entry is Entry.RESPAWN)


def test_a_grown_world_gets_new_processes_where_the_old_ones_cannot_go_on_to_it() -> None:
    story = running(2, nodes_min=1).leave(1).run(51, restored=40)
    bound(story, Reentry.SAME_WORLD).join(3).run_on(62).commit(60)
    assert (story.round.world_size, story.round.entry) == (2, Entry.RESPAWN)


def test_who_keeps_its_rank_in_a_world_of_the_same_size_goes_on_in_its_process() -> None:
    story = bound(running(2, spares=1), Reentry.SAME_WORLD).leave(1)
    assert story.members == ["node-3", "node-2"]
    assert (story.round.entry, story.round.fresh_ranks) == (Entry.REENTER, ())


def test_who_can_never_go_on_starts_anew_beside_those_that_can() -> None:
    story = bound(running(3, spares=1), Reentry.NEVER, "node-3").leave(1)
    assert (story.round.entry, story.round.fresh_ranks) == (Entry.REENTER, (2,))
    assert "the workers of node-3 start anew: a framework" in story.round.reason


def test_a_launcher_that_starts_anew_has_workers_that_can_go_on() -> None:
    story = bound(running(2, nodes_min=1), Reentry.NEVER).join(1, boot="b")
    said = {member.name: member.reentry for member in story.state.members}
    assert said == {"node-1": Reentry.ANY_WORLD, "node-2": Reentry.NEVER}
