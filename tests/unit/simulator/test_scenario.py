"""What a scenario may not hold."""

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.api.policy import Policy
from holdfast.simulator.scenario import Fleet, Scenario


def test_a_policy_with_replica_groups_is_refused_and_says_why() -> None:
    policy = Policy("team/run", 2, 4, replica_nodes=2)
    with pytest.raises(InvalidInput, match="replicaGroupNodes: 2 is not accepted; leave it out"):
        Scenario(policy, Fleet(nodes=4), (), days=1.0)
