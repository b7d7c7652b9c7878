"""Read by each Python that a test starts: one that is to become a warm parent is forked elsewhere instead, and a
run on this machine forks its parts.

See `warm_source` and `forked_parts`. Every other program goes on as if this file were not there; so does a warm
parent whose environment the source cannot take over.
"""

import os
import sys


def _stand_in(address: str, descriptor: int) -> None:
    """Let the source fork the warm parent; until it ends, this process holds its place below the launcher."""
    import json
    import signal
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as source:
        try:
            source.connect(address)
        except OSError:
            return  # the source has gone with its tests
        asked = json.dumps({"env": dict(os.environ), "cwd": os.getcwd()}).encode()
        socket.send_fds(source, [asked], [descriptor, 0, 1, 2])
        if source.recv(64) != b"taken":
            return
        os.close(descriptor)  # else the launcher would not see that the warm parent has ended
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        status = int(source.recv(64) or -signal.SIGKILL)
        if status < 0:
            os.kill(os.getpid(), -status)
        os._exit(status)


match os.environ.get("WARM_PARENTS_FROM"), sys.orig_argv[1:]:
    case str(address), ["-m", "holdfast.agent.launch.warm_parent", descriptor, "torch"]:
        _stand_in(address, int(descriptor))
    case str(), [by, "run", *_] | ["-c", by, "run", *_] if "holdfast" in by and "PARTS_ARE_FORKED" in os.environ:
        from forked_parts import fork_parts

        fork_parts()
