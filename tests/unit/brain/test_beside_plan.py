"""What self-tests measured beside what the job's plan counts on."""

from story import Story
from trials import asked

from holdfast.api.event import MemberTested
from holdfast.api.policy import Expects
from holdfast.api.selftest import CheckResult, TestLevel, UsualLink, Verdict
from holdfast.watchdog.brain.planned import beside_plan, rates_of
from holdfast.watchdog.brain.status import status_of
from holdfast.watchdog.brain.step import changed

EXPECTS = Expects(step_seconds=2.0, memory_rate=2.7e12, nvlink_rate=360e9)


def tell(story: Story, number: int, *rates: tuple[str, float | None]) -> Story:
    name = f"node-{number}"
    wanted = asked(story)[name]
    checks = tuple(CheckResult(check, "GPU-1", Verdict.PASSED, "", 0.5, rate=rate) for check, rate in rates)
    story.tell(MemberTested(name, wanted.number, wanted.level, Verdict.PASSED, checks))
    return story


def joined(**fields: object) -> Story:
    return Story(nodes_max=2, preflight=TestLevel.LIGHT, **fields).join(1, 2)


def test_what_preflight_measures_is_kept_as_mean_and_least() -> None:
    story = joined()
    tell(story, 1, ("bandwidth-device", 2e12), ("bandwidth-peer", None), ("product-bf16", 5.0))
    tell(story, 2, ("bandwidth-device", 3e12))
    (told,) = status_of(story.state, None, story.now).rates
    assert (told.check, told.mean, told.least, told.node, told.count) == (
        "bandwidth-device",
        2.5e12,
        2e12,
        "node-1",
        2,
    )
    assert status_of(story.state, None, story.now).plan == "", "it carries no plan"


def test_what_is_worse_than_planned_is_told_before_the_first_step() -> None:
    story = joined(expects=EXPECTS)
    assert beside_plan(story.state, None) == ""
    tell(story, 1, ("bandwidth-device", 2.7e12), ("bandwidth-peer", 100e9))
    assert story.state.step is None
    assert beside_plan(story.state, None) == "NVLink reaches 100 GB/s of 360 GB/s planned"
    tell(story, 2, ("bandwidth-peer", 200e9))
    assert "reaches 150 GB/s of 360 GB/s planned, the least 100 GB/s on node-1" in beside_plan(story.state, None)
    assert beside_plan(story.state, 3.0).endswith("; a step takes 3 s, 2 s planned")
    assert "a step" not in beside_plan(story.state, 2.05)


def test_a_step_of_fewer_ranks_than_were_planned_is_no_worse_for_it() -> None:
    alone, both = (Story(nodes_min=1, nodes_max=2, expects=EXPECTS).join(*nodes) for nodes in ((1,), (1, 2)))
    for story, ranks in ((alone.wait(120).run(), 1), (both.run(), 2)):
        assert story.state.round is not None
        assert story.state.round.world_size == ranks
    assert beside_plan(alone.state, 4.0) == ""
    assert beside_plan(both.state, 4.0) == "a step takes 4 s, 2 s planned"


def test_the_middle_link_is_a_rate_too() -> None:
    story = joined()
    tested = changed(story.state, links=type(story.state.links)({"node-1": 1.0}, usual=UsualLink(1e-4, 3e9)))
    (told,) = rates_of(tested)
    assert (told.check, told.mean) == ("link", 3e9)
