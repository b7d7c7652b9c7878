"""Which of the sites a target means. Each is imported when it is used: a read on this machine starts at once."""

import os

from holdfast.cli.site import Site
from holdfast.cli.target import Place, Surroundings, Target, place_of


def open_site(target: Target) -> Site:
    """The installation that `target` means. Raises InvalidInput, Unavailable."""
    match place_of(target, look_around):
        case Place.STATE_DIRECTORY:
            from holdfast.cli.localsite import LocalSite

            return LocalSite(target)
        case Place.ADDRESS:
            from holdfast.cli.addresssite import AddressSite

            return AddressSite(target)
        case Place.CLUSTER:
            from holdfast.cli.cluster.clustersite import ClusterSite

            return ClusterSite(target)


def look_around() -> Surroundings:
    """What there is in this directory and this process's environment."""
    from holdfast.cli.statedirectory import runs_under_here

    if runs_under_here():
        return Surroundings.LOCAL_RUN
    if os.environ.get("KUBECONFIG") or os.environ.get("KUBERNETES_SERVICE_HOST"):
        return Surroundings.CLUSTER_ACCESS
    return Surroundings.NOTHING
