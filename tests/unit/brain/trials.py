"""Answers to self-tests, for the brain's tests."""

from story import Story

from holdfast.api.event import MemberTested
from holdfast.api.selftest import CheckResult, TestLevel, TestWanted, Verdict
from holdfast.watchdog.effect import Examine


def asked(story: Story) -> dict[str, TestWanted]:
    """The newest test asked of each member."""
    return {each.member: each.wanted for each in story.effects if isinstance(each, Examine)}


def answer(
    story: Story,
    number: int,
    verdict: Verdict,
    *,
    digest: str = "",
    like: str = "H100",
) -> Story:
    """Member `node-number` answers the newest test asked of it."""
    name = f"node-{number}"
    check = CheckResult("matmul bf16", f"GPU-{number}", verdict, "as it is", 0.5, like, digest)
    wanted = asked(story)[name]
    story.tell(MemberTested(name, wanted.number, wanted.level, verdict, (check,)))
    return story


def examined(nodes: int, spares: int = 0, **fields: object) -> Story:
    """A job that trains with members that all passed their test."""
    story = Story(nodes_max=nodes, spares=spares, preflight=TestLevel.LIGHT, **fields)
    numbers = range(1, nodes + spares + 1)
    story.join(*numbers)
    for number in numbers:
        answer(story, number, Verdict.PASSED)
    story.run(1)
    return story.commit(40).run_on(50)
