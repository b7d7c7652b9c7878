"""The links between nodes are tested before the first round; what is found, and who may be silent."""

from msgspec.structs import replace
from story import Story
from trials import answer, asked

from holdfast.api.event import MemberTested
from holdfast.api.finding import FindingKind
from holdfast.api.incident import IncidentState
from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.policy import LinkPolicy
from holdfast.api.round import Idle
from holdfast.api.selftest import BadLink, Judged, TestLevel, UsualLink, Verdict
from holdfast.api.status import JobPhase

LIGHT = TestLevel.LIGHT
LINKS = LinkPolicy(flow_s=2.0, timeout_s=60.0)
USUAL = UsualLink(2e-4, 3e9)
ALIKE = Judged(Verdict.PASSED, says="10 links, all like each other")


def gathered(nodes: int, spares: int = 0, **fields: object) -> Story:
    """A job whose members have joined and are asked to test their links."""
    given = {"nodes_min": nodes, "nodes_max": nodes, "spares": spares, "form_grace_s": 10.0, **fields}
    story = Story(links=LINKS, **given)
    return story.join(*range(1, nodes + spares + 1))


def lead_of(story: Story) -> str:
    (lead,) = {name for name, each in asked(story).items() if each.links and each.links.leads}
    return lead


def tell(story: Story, name: str, verdict: Verdict, says: str = "", judged: Judged | None = None) -> None:
    story.tell(MemberTested(name, asked(story)[name].number, LIGHT, verdict, says=says, links=judged))


def conclude(story: Story, judged: Judged, *silent: str) -> Story:
    """All but `silent` answer, the lead as the last."""
    lead = lead_of(story)
    for name in asked(story):
        if name != lead and name not in silent:
            tell(story, name, judged.verdict)
    tell(story, lead, judged.verdict, judged=judged)
    return story


def test_all_members_test_their_links_before_the_first_round() -> None:
    story = gathered(4)

    assert story.state.phase is JobPhase.PREFLIGHT
    assert isinstance(story.state.desired, Idle)
    assert story.state.reason == (
        "0 of 4 members are ready; waiting for the test of the links between node-1, node-2, node-3, node-4"
    )
    parts = {name: each.links for name, each in asked(story).items()}
    assert lead_of(story) == "node-1"
    assert {each.host for each in parts.values() if each} == {"10.0.0.1"}
    assert len({(each.token, each.port, each.flow_s, each.limit_s) for each in parts.values() if each}) == 1
    assert {name: each.members for name, each in parts.items() if each and each.members} == {
        "node-1": ("node-1", "node-2", "node-3", "node-4")
    }
    conclude(story, ALIKE)
    assert story.members == ["node-1", "node-2", "node-3", "node-4"]
    assert story.state.incidents == ()


def test_a_job_whose_spec_does_not_ask_for_it_begins_at_once() -> None:
    assert Story(nodes_max=2).join(1, 2).members == ["node-1", "node-2"]


def test_the_devices_are_tested_first() -> None:
    story = gathered(2, preflight=LIGHT)
    assert all(each.links is None for each in asked(story).values())
    tell(story, "node-1", Verdict.PASSED)
    tell(story, "node-2", Verdict.PASSED)
    assert all(each.links is not None for each in asked(story).values())
    assert conclude(story, ALIKE).members == ["node-1", "node-2"]


def test_a_node_whose_links_are_all_bad_is_left_out_for_a_spare() -> None:
    story = gathered(4, spares=1).wait(11)
    says = "all 3 links bad: round trip 20.00 ms, others 0.20 ms"
    conclude(story, Judged(Verdict.FAILED, {"node-2": says}, says=f"node node-2: {says}"))

    assert story.members == ["node-1", "node-3", "node-4", "node-5"]
    assert story.state.avoided_nodes == {"node-2"}
    (incident,) = story.state.incidents
    assert (incident.kind, incident.culprit.node, incident.culprit.peer) == (FindingKind.SELF_TEST, "node-2", None)
    assert (incident.cause, incident.error) == ("link test failed", says)


def test_a_bad_link_between_two_sound_nodes_is_told_and_nobody_leaves() -> None:
    story = gathered(4)
    bad = BadLink("node-2", "node-3", "1.00% of segments sent again, others 0.00%")
    conclude(story, Judged(Verdict.FAILED, links=(bad,), says="link node-2 - node-3"))

    assert len(story.members) == 4
    (incident,) = story.state.incidents
    assert (incident.culprit.node, incident.culprit.peer) == ("node-2", "node-3")
    assert incident.state is IncidentState.RECOVERED
    told = "link node-2 - node-3: 1.00% of segments sent again, others 0.00%"
    assert story.state.links.bad == {"node-2": told, "node-3": told}


def test_one_that_did_not_reach_the_others_is_left_out() -> None:
    story = gathered(4, spares=1).wait(11)
    tell(story, "node-3", Verdict.FAILED, "nobody leads at 10.0.0.1:7010: timed out")
    conclude(story, Judged(Verdict.PASSED, says="6 links", absent=("node-3",)), "node-3")

    assert story.members == ["node-1", "node-2", "node-4", "node-5"]
    assert story.state.avoided_nodes == {"node-3"}
    assert story.incident.error == "did not reach the member that led the test"


def test_one_that_could_not_begin_is_not_blamed_for_not_coming() -> None:
    story = gathered(4)
    tell(story, "node-3", Verdict.UNKNOWN, "the self-test ended with signal 9")
    conclude(story, Judged(Verdict.PASSED, says="6 links", absent=("node-3",)), "node-3")

    assert len(story.members) == 4
    assert story.state.incidents == ()


def test_a_lead_that_is_silent_is_followed_by_another_and_then_the_job_begins() -> None:
    story = gathered(3)
    assert lead_of(story) == "node-1"
    story.effects.clear()
    story.wait(60 + 21)
    assert lead_of(story) == "node-2"
    story.effects.clear()
    story.wait(60 + 21)
    assert len(story.members) == 3
    assert asked(story) == {}


def test_the_lead_of_a_second_try_names_the_first_that_does_not_come() -> None:
    story = gathered(4, spares=1).wait(11)
    tell(story, "node-1", Verdict.UNKNOWN, "1 of 5 nodes came in 30 s: node-1")
    assert asked(story)["node-2"].links.leads  # type: ignore[union-attr]
    judged = Judged(Verdict.PASSED, says="6 links", absent=("node-1",))
    tell(story, "node-2", judged.verdict, judged=judged)
    assert story.members == ["node-2", "node-3", "node-4", "node-5"]


def test_a_lead_speaks_of_members_of_its_test_alone() -> None:
    story = gathered(2)
    judged = Judged(Verdict.FAILED, {"node-9": "slow"}, (BadLink("node-1", "node-9", "slow"),), absent=("node-8",))
    assert conclude(story, judged).state.incidents == ()


def test_a_member_that_joins_later_has_its_links_tested_with_the_others() -> None:
    story = gathered(3, spares=1)
    story.wait(11)
    says = "all 3 links bad"
    conclude(story, Judged(Verdict.FAILED, {"node-2": says, "node-3": says}, says=says))
    assert isinstance(story.state.desired, Idle)
    story.effects.clear()
    story.join(6).wait(11)
    assert sorted(asked(story)) == ["node-1", "node-4", "node-6"]


def trained(spares: int, **fields: object) -> Story:
    """A job that trains on two nodes whose links were tested, and those of its spares."""
    story = conclude(gathered(2, spares, **fields), replace(ALIKE, usual=USUAL)).run(1)
    story.effects.clear()
    return story


def test_spares_test_their_links_with_each_other_now_and_then_and_nobody_waits() -> None:
    story = trained(3)
    story.wait(1700)
    assert asked(story) == {}
    story.wait(101)
    assert sorted(asked(story)) == ["node-3", "node-4", "node-5"]
    part = asked(story)[lead_of(story)].links
    assert part is not None
    assert (part.flow_s, part.gang_s, part.usual) == (2.0, 0.0, USUAL)
    assert story.members == ["node-1", "node-2"]
    assert story.state.phase is JobPhase.RUNNING
    conclude(story, ALIKE)
    story.effects.clear()
    story.wait(1700)
    assert asked(story) == {}
    story.wait(101)
    assert len(asked(story)) == 3


def test_two_spares_are_too_few_to_be_compared() -> None:
    story = trained(2)
    story.wait(10_000)
    assert asked(story) == {}


def test_one_that_joins_later_and_one_that_is_suspect_are_tested_at_once() -> None:
    story = trained(3, nodes_min=1)
    story.join(6)
    assert sorted(asked(story)) == ["node-3", "node-4", "node-5", "node-6"]
    assert lead_of(story) != "node-6"
    conclude(story, ALIKE)
    story.effects.clear()
    # It was lost, so that a spare took its ranks, and is back.
    story.lose(2)
    story.run(2).join(2, boot="b")
    assert "node-2" in asked(story)


def test_a_spare_whose_links_are_bad_is_left_for_another() -> None:
    story = trained(3)
    story.wait(1801)
    says = "all 2 links bad: no answer over it: timed out"
    conclude(story, Judged(Verdict.FAILED, {"node-4": says}, says=says))
    assert story.state.avoided_nodes == {"node-4"}
    assert story.members == ["node-1", "node-2"]
    assert story.state.phase is JobPhase.RUNNING


def test_who_has_to_leave_the_test_for_a_round_is_not_blamed_for_it() -> None:
    story = trained(3)
    story.wait(1801)
    lead = lead_of(story)
    story.lose(2)
    (came,) = {"node-3", "node-4", "node-5"} & set(story.members)
    if came == lead:
        came = "node-1"
    says = "all 2 links bad: node told nothing"
    tell(story, lead, Verdict.FAILED, judged=Judged(Verdict.FAILED, {came: says}, says=says))
    assert came not in story.state.avoided_nodes


def test_the_next_round_does_not_wait_for_the_links_of_spares() -> None:
    story = trained(3)
    story.wait(1801)
    assert asked(story) != {}
    story.lose(2)
    assert len(story.members) == 2


def test_whoever_asks_for_the_test_of_a_spare_has_its_links_tested_behind_its_devices() -> None:
    story = trained(3)
    says = story.ask(InterventionAction.TEST, node="node-4").outcome
    assert "self-test of node node-4" in says
    assert "now; then, while a round runs, its links to 2 others without ranks; a failure" in says
    assert {name: each.links for name, each in asked(story).items()} == {"node-4": None}
    answer(story, 4, Verdict.PASSED).wait(0)
    parts = {name: each.links for name, each in asked(story).items()}
    assert sorted(parts) == ["node-3", "node-4", "node-5"]
    assert all(parts.values())
    assert (story.members, story.state.phase) == (["node-1", "node-2"], JobPhase.RUNNING)
    bad = "all 2 links bad: no answer over it: timed out"
    conclude(story, Judged(Verdict.FAILED, {"node-4": bad}, says=bad))
    assert story.state.avoided_nodes == {"node-4"}


def test_where_its_links_cannot_be_tested_it_is_said_why() -> None:
    def says(story: Story, node: str) -> str:
        return story.ask(InterventionAction.TEST, node=node).outcome

    few = "its links are not: that takes 3 members without ranks, and there are 2"
    assert few in says(trained(2), "node-3")
    assert "links" not in says(trained(3), "node-1"), "it trains, as its help says"
    assert "links" not in says(Story(nodes_max=2, spares=3).join(1, 2, 3, 4, 5).run(1), "node-3")
    assert "before the first round" in says(Story(nodes_min=2, links=LINKS).join(1), "node-1")


def test_a_member_is_not_called_away_from_the_test_of_links_that_others_wait_for() -> None:
    story = gathered(3)
    before = asked(story)
    outcome = story.ask(InterventionAction.TEST, node="node-2")
    assert (outcome.state, asked(story)) == (InterventionState.REFUSED, before)
    assert "being tested; ask again" in outcome.outcome
    conclude(story, ALIKE)
    assert story.ask(InterventionAction.TEST, "i2", node="node-2").state is InterventionState.DONE


def test_the_journal_of_a_test_leads_to_the_same_token() -> None:
    assert asked(gathered(3)) == asked(gathered(3))
    assert asked(gathered(3)) != asked(gathered(4))
