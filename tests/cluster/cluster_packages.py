"""The Debian packages a test cluster is made of."""

import os
import shutil
import subprocess
from pathlib import Path

INSTALL_S_MAX = 600.0
PROGRAMS = {
    "containerd": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "socat": "socat",
    "ebtables": "ebtables",
    "sysctl": "procps",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "busybox": "busybox",
}
CNI = Path("/usr/lib/cni/bridge")


class ClusterUnavailable(RuntimeError):
    """This machine cannot have a test cluster. The text says what is missing."""


def install() -> None:
    """Install what is missing. Raises ClusterUnavailable."""
    if os.geteuid() != 0:
        raise ClusterUnavailable("the test cluster makes namespaces and mounts: run its tests as root")
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    missing += [] if CNI.exists() else ["containernetworking-plugins"]
    if not missing:
        return
    command = f"apt-get update -qq && apt-get install -y -qq --no-install-recommends {' '.join(missing)}"
    result = subprocess.run(
        ["sh", "-c", command],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        timeout=INSTALL_S_MAX,
        check=False,
    )
    if result.returncode != 0:
        raise ClusterUnavailable(f"installing {missing} ended with {result.returncode}: {result.stderr[-500:]}")
