"""The switch the test cluster's nodes hang on: a bridge in the machine's own network namespace."""

import subprocess
from collections.abc import Iterable

from node_files import NodeAddress
from patience import patient

NAME = "hfbr0"
PORT = "hfport"  # followed by the node's number
ADDRESS = "10.88.0.1"  # here the control plane listens
LENGTH = 24
SERVICE_RANGE = "10.96.0.0/16"


class CommandFailed(RuntimeError):
    """A command of the machine ended with an error; the text has what it said."""


def run(*command: str | int, timeout_s: float = 60.0) -> str:
    """Raises CommandFailed."""
    words = [str(each) for each in command]
    result = subprocess.run(words, capture_output=True, text=True, timeout=patient(timeout_s), check=False)
    if result.returncode != 0:
        raise CommandFailed(f"{' '.join(words)} ended with {result.returncode}: {result.stderr or result.stdout}")
    return result.stdout


def set_up(nodes: Iterable[NodeAddress]) -> None:
    """The bridge, and the way to pods and services, so that a test can call both."""
    run("ip", "link", "add", NAME, "type", "bridge")
    run("ip", "address", "add", f"{ADDRESS}/{LENGTH}", "dev", NAME)
    run("ip", "link", "set", NAME, "up")
    nodes = list(nodes)
    for node in nodes:
        run("ip", "route", "add", node.pods, "via", node.address, "dev", NAME)
    # Any node can serve a service's address, for it replaces the caller's address by its own. While the first node
    # is off, services cannot be called from here; pods can.
    run("ip", "route", "add", SERVICE_RANGE, "via", nodes[0].address, "dev", NAME)


def tear_down() -> None:
    """Nothing happens when there is none. Its routes go with it, and the ports of machines that are dead."""
    for line in run("ip", "-o", "link", "show").splitlines():
        link = line.split(": ")[1].split("@")[0]
        if link == NAME or link.startswith(PORT):
            _delete(link)


def plug(node: NodeAddress, init: int) -> None:
    """Give the network namespace of process `init` a cable to the bridge, addresses and routes."""
    inside = ("nsenter", f"--net=/proc/{init}/ns/net")
    run("ip", "link", "add", port(node), "type", "veth", "peer", "name", "eth0", "netns", init)
    run("ip", "link", "set", port(node), "master", NAME, "up")
    run(*inside, "ip", "link", "set", "lo", "up")
    run(*inside, "ip", "address", "add", f"{node.address}/{LENGTH}", "dev", "eth0")
    run(*inside, "ip", "link", "set", "eth0", "up")
    # A way is looked up before a service's address is replaced, so there must be one, though it leads nowhere.
    # No default route: the kubelet looks for clouds at their addresses, and a quick "unreachable" saves 11 s.
    run(*inside, "ip", "route", "add", SERVICE_RANGE, "via", ADDRESS)
    run(*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1")


def connect(node: NodeAddress, init: int, others: Iterable[NodeAddress]) -> None:
    """Tell a node where the other nodes' pods are."""
    for other in others:
        inside = ("nsenter", f"--net=/proc/{init}/ns/net")
        run(*inside, "ip", "route", "replace", other.pods, "via", other.address)


def unplug(node: NodeAddress) -> None:
    """Pull the cable: what the node sends from now on, also a last goodbye of a connection, reaches nobody."""
    run("ip", "link", "set", port(node), "down")


def remove_port(node: NodeAddress) -> None:
    """The kernel removes it with the machine's network namespace, but only some time later."""
    _delete(port(node))


def port(node: NodeAddress) -> str:
    return f"{PORT}{node.number}"


def _delete(link: str) -> None:
    try:
        run("ip", "link", "delete", link)
    except CommandFailed as error:
        if "Cannot find device" not in str(error):  # the kernel was faster
            raise
