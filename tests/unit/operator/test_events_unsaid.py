"""What was tried and failed is not told as done."""

from holdfast.operator.decide.action import Cordon, CreatePod, KubeEvent, SetFinalizer, Uncordon
from holdfast.operator.decide.events import unsaid

REPLACED = KubeEvent("MemberReplaced", "gpt-2 in place of gpt-0 (exit code 1)")
CORDONED = tuple(KubeEvent("NodeCordoned", f"{node}: XID 79", warning=True) for node in ("n1", "n11"))
RETURNED = KubeEvent("NodeReturned", "n1 is back in service")


def test_each_failure_takes_back_what_tells_of_it_and_nothing_else() -> None:
    said = (REPLACED, *CORDONED, RETURNED)
    assert unsaid(said, ()) == said
    assert unsaid(said, [CreatePod({})]) == said[1:]
    assert unsaid(said, [Cordon("n1", "XID 79", "")]) == (REPLACED, CORDONED[1], RETURNED)
    assert unsaid(said, [Uncordon("n1")]) == (REPLACED, *CORDONED)
    assert unsaid(said, [SetFinalizer(held=False)]) == said
