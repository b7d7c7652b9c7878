"""Nodes as network namespaces on one bridge, with cables that can be made bad.

Every cable carries 200 Mbit/s, by a token bucket at the node's end. A bad one has a relay in its middle: a process
that holds back every frame, or loses some, between a TAP device in the node and another on the bridge. So a frame
is late or lost to the kernels at both ends as on a real cable. (`tc netem` would do the same where the kernel has
it.) Needs to be root.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

SWITCH: Final = "hfl-switch"
RATE: Final = "200mbit"
BYTES_PER_S: Final = 25e6
QUEUE_S: Final = 0.1  # what a port holds back before it drops
LEAD: Final = "10.99.0.254"

# Source: https://github.com/torvalds/linux/blob/master/include/uapi/linux/if_tun.h
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_FRAME_MAX: Final = 1 << 16
# Source: https://man7.org/linux/man-pages/man2/setns.2.html; Python has it as os.setns from 3.12 on.
_CLONE_NEWNET: Final = 0x40000000


@dataclass(frozen=True)
class Relay:
    """What a cable does to frames, in each direction. One that is half duplex carries one direction at a time."""

    delay_s: float = 0.0
    loss: float = 0.0
    half_duplex: bool = False


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)


def inside(namespace: str, *command: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", namespace, *command)


def name_of(node: int) -> str:
    return f"hfl-n{node}"


def address_of(node: int) -> str:
    return f"10.99.0.{node + 1}"


@contextmanager
def lab(nodes: int, relays: dict[int, Relay]) -> Iterator[None]:
    """So many nodes, some with a relay in their cable; all of it is gone afterwards."""
    with ExitStack() as stack:
        for namespace in (SWITCH, *map(name_of, range(nodes))):
            with suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", namespace)  # a killed run left it
            run("ip", "netns", "add", namespace)
            stack.callback(run, "ip", "netns", "del", namespace)
            run(*inside(namespace, "ip", "link", "set", "lo", "up"))
        run(*inside(SWITCH, "ip", "link", "add", "br0", "type", "bridge"))
        run(*inside(SWITCH, "ip", "address", "add", f"{LEAD}/24", "dev", "br0"))
        run(*inside(SWITCH, "ip", "link", "set", "br0", "up"))
        for node in range(nodes):
            if relay := relays.get(node):
                _with_relay(stack, node, relay)
            else:
                port = ("ip", "link", "add", f"p{node}", "type", "veth", "peer", "name", "eth0")
                run(*inside(SWITCH, *port, "netns", name_of(node)))
            _plugged(node)
        yield


def _with_relay(stack: ExitStack, node: int, relay: Relay) -> None:
    words = (str(node), str(relay.delay_s), str(relay.loss), "half" if relay.half_duplex else "full")
    process = subprocess.Popen((sys.executable, __file__, *words), stdout=subprocess.PIPE)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", "the relay did not start"


def _plugged(node: int) -> None:
    own = name_of(node)
    run(*inside(SWITCH, "ip", "link", "set", f"p{node}", "master", "br0", "up"))
    run(*inside(own, "ip", "address", "add", f"{address_of(node)}/24", "dev", "eth0"))
    run(*inside(own, "ip", "link", "set", "eth0", "up"))
    bucket = ("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", RATE, "burst", "64k", "latency", "100ms")
    run(*inside(own, *bucket))


def lose_between(one: int, other: int, share: float) -> None:
    """One way between two nodes loses packets, in both directions; every other way is sound."""
    for node, source in ((one, other), (other, one)):
        rule = ("iptables", "-A", "INPUT", "-s", address_of(source), "-m", "statistic", "--mode", "random")
        run(*inside(name_of(node), *rule, "--probability", str(share), "-j", "DROP"))


def relay_frames(ends: Sequence[int], relay: Relay) -> None:
    """Carry frames between two TAP devices until this process is ended."""
    chance = random.Random(0)
    waiting: list[tuple[float, int, int, bytes]] = []
    number, free_at = 0, 0.0
    while True:
        wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select(ends, (), (), wait_s)
        now = time.monotonic()
        for end in readable:
            frame = os.read(end, _FRAME_MAX)
            if chance.random() < relay.loss or free_at > now + QUEUE_S:
                continue
            number += 1
            if relay.half_duplex:
                free_at = max(now, free_at) + len(frame) / BYTES_PER_S
            heapq.heappush(waiting, (max(now, free_at) + relay.delay_s, number, ends[1 - ends.index(end)], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, end, frame = heapq.heappop(waiting)
            os.write(end, frame)


def tap(namespace: str, name: str) -> int:
    """A TAP device of this name in a namespace; its file descriptor. This process stays in the namespace."""
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter network namespace {namespace}")
    os.close(descriptor)
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    run("ip", "link", "set", name, "txqueuelen", "5000", "up")
    return device


if __name__ == "__main__":
    number, delay, loss, duplex = sys.argv[1:]
    devices = (tap(name_of(int(number)), "eth0"), tap(SWITCH, f"p{number}"))
    print("ready", flush=True)
    relay_frames(devices, Relay(float(delay), float(loss), duplex == "half"))
