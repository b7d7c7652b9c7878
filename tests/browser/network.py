"""A network of this process's own, with nothing in it but the loopback interface.

Chromium gives up what it is loading whenever an interface of its machine comes or goes (net::ERR_NETWORK_CHANGED),
and the cluster's tests, which run beside these, make and remove many.
"""

import ctypes
import fcntl
import os
import socket
import struct

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
# Source: unshare(2), https://man7.org/linux/man-pages/man2/unshare.2.html, and netdevice(7),
# https://man7.org/linux/man-pages/man7/netdevice.7.html
REQUEST = struct.Struct("16sh14x")


def leave_for_a_network_of_its_own() -> bool:
    """For this thread and all that it starts from now on; False where this user may not. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        if (number := ctypes.get_errno()) == 1:  # EPERM: the machine's network does, where nobody changes it
            return False
        raise OSError(number, os.strerror(number))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        _, flags = REQUEST.unpack(fcntl.ioctl(asked, SIOCGIFFLAGS, REQUEST.pack(b"lo", 0)))
        fcntl.ioctl(asked, SIOCSIFFLAGS, REQUEST.pack(b"lo", flags | IFF_UP))
    return True
