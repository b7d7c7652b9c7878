"""The Debian packages a test cluster is made of."""

import os
import shutil
from pathlib import Path

from debian_packages import PackagesMissing, install_packages

PROGRAMS = {
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
    try:
        install_packages(_missing)
    except PackagesMissing as error:
        raise ClusterUnavailable(str(error)) from error


def _missing() -> list[str]:
    missing = sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})
    return missing if CNI.exists() else [*missing, "containernetworking-plugins"]
