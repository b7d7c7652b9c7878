"""Answers to self-tests, for the brain's tests."""

from story import Story

from holdfast.api.event import MemberTested
from holdfast.api.selftest import TOPOLOGY, CheckResult, TestLevel, TestWanted, Verdict
from holdfast.watchdog.brain.step import Examine


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


def misfit(story: Story, number: int, domain: int, *also: CheckResult) -> Story:
    """Member `node-number` answers that its NVLink domains hold `domain` GPUs, and what else failed."""
    wanted = asked(story)[f"node-{number}"]
    says = f"tensor parallel size {wanted.tensor} asked of a {domain}-GPU NVLink domain"
    sound = CheckResult("matmul bf16", f"GPU-{number}", Verdict.PASSED, "as it is", 0.5, "H100", "aa")
    checks = (sound, CheckResult(TOPOLOGY, "node", Verdict.FAILED, says, 0.1), *also)
    story.tell(MemberTested(f"node-{number}", wanted.number, wanted.level, Verdict.FAILED, checks, says))
    return story
