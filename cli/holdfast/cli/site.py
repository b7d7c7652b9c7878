"""Where jobs are found: a run on this machine, a watchdog by its address, or a cluster.

Each is imported when it is meant: a read on this machine starts at once. A `JobSource` is one job there. Every
read of it raises Unavailable when nobody answers, InvalidInput when there is no such job; a `Site` raises so too.
"""

import os
from typing import TYPE_CHECKING

from holdfast.cli.target import Place, Surroundings, Target, place_of

if TYPE_CHECKING:
    from holdfast.cli.cluster.clustersite import ClusterSite
    from holdfast.cli.localsite import LocalSite, LocalSource
    from holdfast.cli.watchdogsource import AddressSite, WatchdogSource

    JobSource = LocalSource | WatchdogSource
    Site = LocalSite | AddressSite | ClusterSite


def open_site(target: Target) -> "Site":
    """The installation that `target` means. Raises InvalidInput, Unavailable."""
    match place_of(target, look_around):
        case Place.STATE_DIRECTORY:
            from holdfast.cli.localsite import LocalSite

            return LocalSite(target)
        case Place.ADDRESS:
            from holdfast.cli.watchdogsource import AddressSite

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
