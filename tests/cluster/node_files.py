"""The configuration files of one node. Pure: text from names and addresses.

Inside its mount namespace a node has paths as a machine of its own would: /srv is its disk, /run its memory.
"""

import json
from dataclasses import dataclass
from pathlib import Path

PAUSE_IMAGE = "test.holdfast/pause:1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CNI_FOLDER = "/srv/cni"
DNS_ADDRESS = "10.96.0.10"
POD_RANGE = "10.244.0.0/16"

CONTAINERD_CONFIG = f"""version = 3
root = "/srv/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  # runc may not lower a score where CAP_SYS_RESOURCE is missing; it then ends with "can't get final child's PID".
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{CNI_FOLDER}"
"""


@dataclass(frozen=True)
class NodeAddress:
    """Where a node is: its number counts from 1."""

    name: str
    number: int

    @property
    def address(self) -> str:
        return f"10.88.0.{10 + self.number}"

    @property
    def pods(self) -> str:
        return f"10.244.{self.number}.0/24"


def kubelet_config(authority: Path, cgroup: str) -> str:
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(authority)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup}",
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,  # where this machine has that version, else it changes nothing
            "failSwapOn": False,
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            # The lease is renewed every quarter of this; the control plane's grace period is as long.
            "nodeLeaseDurationSeconds": 8,
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "5s",
            "fileCheckFrequency": "0s",
            "httpCheckFrequency": "0s",
            "imageMinimumGCAge": "1h",
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {"memory.available": "50Mi"},
            "volumeStatsAggPeriod": "10m",
        }
    )


def cni_config(node: NodeAddress) -> str:
    return json.dumps(
        {
            "cniVersion": "0.3.1",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "pods0",
                    "isDefaultGateway": True,
                    "hairpinMode": True,
                    "ipMasq": False,
                    "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": node.pods}]]},
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
    )
