"""What the doctor says to do about a node that is out of service."""

from holdfast.cli.doctor.checks import examine
from holdfast.cli.doctor.facts import Facts, NodeSeen
from holdfast.cli.doctor.finding import Unseen

HIDDEN = Unseen("forbidden")
FACTS = Facts(
    server="https://api",
    namespace="holdfast",
    version="v1.30.2",
    definitions=HIDDEN,
    expected={},
    rights=HIDDEN,
    operator=HIDDEN,
    lease=HIDDEN,
    watchdog=HIDDEN,
    health=HIDDEN,
    jobs_read=HIDDEN,
    agents=HIDDEN,
    nodes=(NodeSeen("n1"), NodeSeen("n2", "XID 79 (job a/b, inc-1)")),
)


def test_a_node_out_of_service_is_said_how_to_return_with_its_job_and_without() -> None:
    (fix,) = [each.fix for each in examine(FACTS) if each.what == "node n2"]
    with_job, _, without = fix.partition("; where its job is gone: ")
    assert with_job == "once repaired: kubectl holdfast return n2"
    assert without.split("; ") == [
        "kubectl taint node n2 holdfast.dev/cordoned-",
        "kubectl annotate node n2 holdfast.dev/cordoned-by-",
    ]
