"""What whoever runs the cluster says of every job; what a job says itself comes first."""

from collections.abc import Mapping

import msgspec

from holdfast.api.policy import CordonOn, Policy, XidAction


class ClusterPolicy(msgspec.Struct, frozen=True):
    """`xid_actions` override the catalogue for every job that does not override the same number itself.

    `cordon_on` no job overrides.
    """

    xid_actions: Mapping[int, XidAction] = {}
    cordon_on: CordonOn = CordonOn.ANYTHING

    def applied_to(self, policy: Policy) -> Policy:
        """The policy as the job is judged by, and as it is journaled: a replay needs nothing else."""
        said = dict(self.xid_actions)
        return msgspec.structs.replace(policy, cordon_on=self.cordon_on, cluster_xid_actions=said)


NO_CLUSTER_POLICY = ClusterPolicy()
