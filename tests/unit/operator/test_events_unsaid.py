"""What was tried and failed is not told as done."""

from holdfast.operator.decide.action import Cordon, CreatePod, SetFinalizer, Uncordon
from holdfast.operator.decide.events import unsaid
from holdfast.operator.decide.observed import KubeEvent

REPLACED = KubeEvent("MemberReplaced", "gpt-2 in place of gpt-0 (exit code 1)")
CORDONED = tuple(KubeEvent("NodeCordoned", f"{node}: XID 79", warning=True) for node in ("n1", "n11"))
RETURNED = KubeEvent("NodeReturned", "n1 is back in service")
WOUND_UP = KubeEvent("WoundUp", "the job is still; nothing is left")


def test_each_failure_takes_back_what_tells_of_it_and_nothing_else() -> None:
    said = (REPLACED, *CORDONED, RETURNED, WOUND_UP)
    assert unsaid(said, ()) == said
    assert unsaid(said, [CreatePod({})]) == said[1:]
    assert unsaid(said, [Cordon("n1", "XID 79", "")]) == (REPLACED, CORDONED[1], RETURNED, WOUND_UP)
    assert unsaid(said, [Uncordon("n1")]) == (REPLACED, *CORDONED, WOUND_UP)
    assert unsaid(said, [SetFinalizer(held=False)]) == said[:-1]
    assert unsaid(said, [SetFinalizer(held=True)]) == said
