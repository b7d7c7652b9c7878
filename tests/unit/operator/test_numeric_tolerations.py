"""Tolerations that compare numbers, as Kubernetes does from 1.35 on."""

import pytest
from operator_builders import node

from holdfast.operator.decide.nodes import holds_nobody_off
from holdfast.operator.decide.template import Toleration
from holdfast.operator.kube.objects import Taint


@pytest.mark.parametrize(
    ("operator", "asked", "there", "tolerated"),
    [
        ("Gt", "900", "950", True),
        ("Gt", "900", "900", False),
        ("Gt", "-5", "0", True),
        ("Lt", "900", "850", True),
        ("Lt", "900", "1000", False),
        ("Lt", "10", "9", True),  # as numbers, not as texts
        ("Lt", "900", "much", False),
        ("Gt", "", "1", False),
        ("Gt", "0.5", "1", False),
    ],
)
def test_a_taint_is_met_by_its_number(operator: str, asked: str, there: str, tolerated: bool) -> None:
    tainted = node("n1", taints=(Taint("example.com/sla", "NoSchedule", there),))
    assert holds_nobody_off(tainted, (Toleration("example.com/sla", operator, asked),)) is tolerated
    assert not holds_nobody_off(tainted, (Toleration("example.com/other", operator, asked),))
