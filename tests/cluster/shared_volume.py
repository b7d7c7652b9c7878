"""Volumes that every node can write, as a network file system would give them.

All nodes of the test cluster are on one machine and see its folders, so a folder of it is such a file system.
"""

import json
import shutil
from pathlib import Path

from cluster import Cluster

MODES = ("ReadWriteMany", "ReadWriteOnce")


class SharedVolume:
    """A volume for one claim, `NAMESPACE/NAME`. It is empty at first; `folder` is its content, seen from here."""

    def __init__(self, cluster: Cluster, claim: str, size: str = "1Gi"):
        self._cluster = cluster
        self._namespace, self._claim = claim.split("/")
        self._name = f"test-{self._namespace}-{self._claim}"
        self.folder: Path = cluster.folder / "volumes" / self._name
        self._size = size

    def make(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o777)  # the kubelet hands no ownership of host folders on, whatever a pod's fsGroup is
        manifest = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": self._name},
            "spec": {
                "capacity": {"storage": self._size},
                "accessModes": list(MODES),
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": self._namespace, "name": self._claim},
                "hostPath": {"path": str(self.folder)},
            },
        }
        self._cluster.kubectl("apply", "-f", "-", given=json.dumps(manifest))

    def remove(self) -> None:
        """The volume, its claim and all that is in it."""
        self._cluster.kubectl(
            "delete", "pvc", self._claim, "-n", self._namespace, "--ignore-not-found", "--wait=false"
        )
        self._cluster.kubectl("delete", "pv", self._name, "--ignore-not-found", "--wait=false")
        shutil.rmtree(self.folder, ignore_errors=True)
