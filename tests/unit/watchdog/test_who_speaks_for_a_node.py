"""Whose word about a node is taken."""

import pytest

from holdfast.watchdog.access.auth import Caller, Role
from holdfast.watchdog.server.connection import BadMessage
from holdfast.watchdog.server.identity import check_speaks_for

INGEST = frozenset({Role.INGEST})


@pytest.mark.parametrize("node", [None, "node-1"])
def test_an_agent_speaks_for_its_node_and_one_whose_node_nobody_says_for_any(node: str | None) -> None:
    check_speaks_for(Caller("agent", INGEST, node=node), "node-1")


def test_the_token_of_one_node_says_nothing_of_another() -> None:
    with pytest.raises(BadMessage, match="node: node-1 is not accepted; the token of agent is of a pod on node-2"):
        check_speaks_for(Caller("agent", INGEST, node="node-2"), "node-1")


def test_a_pod_of_a_job_speaks_for_no_node() -> None:
    with pytest.raises(BadMessage, match="default may not report for nodes: grant it the role ingest"):
        check_speaks_for(Caller("default", INGEST, "research", "gpt-0", node="node-1"), "node-1")
