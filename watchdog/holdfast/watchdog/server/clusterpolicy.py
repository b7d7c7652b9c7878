"""What whoever runs the cluster says of every job; what a job says itself comes first."""

from collections.abc import Mapping

import msgspec
from aiohttp import web

from holdfast.api.policy import Policy, XidAction


class ClusterPolicy(msgspec.Struct, frozen=True):
    """`xid_actions` override the catalogue for every job that does not override the same number itself."""

    xid_actions: Mapping[int, XidAction] = {}

    def applied_to(self, policy: Policy) -> Policy:
        """The policy as the job is judged by, and as it is journaled: a replay needs nothing else."""
        if not self.xid_actions:
            return policy
        return msgspec.structs.replace(policy, xid_actions={**self.xid_actions, **policy.xid_actions})


NO_CLUSTER_POLICY = ClusterPolicy()
CLUSTER_POLICY = web.AppKey("cluster_policy", ClusterPolicy)
