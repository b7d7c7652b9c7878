"""What the doctor says to do about a node that is out of service."""

from dataclasses import replace

import pytest

from holdfast.cli.cluster.record import JobRecord, Meta
from holdfast.cli.doctor.checks import examine
from holdfast.cli.doctor.facts import Facts, NodeSeen, Unseen

HIDDEN = Unseen("forbidden")
FACTS = Facts(
    server="https://api",
    namespace="holdfast",
    version="v1.37.2",
    definitions=HIDDEN,
    expected={},
    rights=HIDDEN,
    operator=HIDDEN,
    lease=HIDDEN,
    watchdog=HIDDEN,
    health=HIDDEN,
    jobs_read=HIDDEN,
    agents=HIDDEN,
    nodes=(NodeSeen("n1"), NodeSeen("n2", "XID 79 (job a/b, inc-1)", "a/b")),
)


BY_HAND = "kubectl taint node n2 holdfast.dev/cordoned-; kubectl annotate node n2 holdfast.dev/cordoned-by-"
BY_ITS_JOB = "kubectl holdfast return n2 -n a --job b"


def job(namespace: str, name: str) -> JobRecord:
    return JobRecord(Meta(name=name, namespace=namespace))


@pytest.mark.parametrize(
    ("jobs", "way"),
    [
        (HIDDEN, f"{BY_ITS_JOB}; where that job is gone: {BY_HAND}"),
        ((job("a", "b"),), BY_ITS_JOB),
        ((job("a", "c"),), BY_HAND),
    ],
    ids=["jobs unseen", "job there", "job gone"],
)
def test_a_node_out_of_service_is_said_how_to_return(jobs: tuple[JobRecord, ...] | Unseen, way: str) -> None:
    (fix,) = [each.fix for each in examine(replace(FACTS, jobs=jobs)) if each.what == "node n2"]
    assert fix == f"once repaired: {way}"


def test_a_node_on_which_no_job_is_written_is_returned_by_hand() -> None:
    seen = replace(FACTS, nodes=(NodeSeen("n2", "nothing is written on it"),))
    (fix,) = [each.fix for each in examine(seen) if each.what == "node n2"]
    assert fix == f"once repaired: {BY_HAND}"
