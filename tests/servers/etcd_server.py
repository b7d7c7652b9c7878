"""The store under an API server of a test's own."""

import json
import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from debian_packages import packaged_program
from patience import patient
from server_process import ServerProcess, free_port

READY_S_MAX = patient(30.0)


class EtcdServer:
    """One etcd without TLS. `stop` and `kill` leave its data and its ports as they were.

    `address` is what it listens on: 127.0.0.1, or for a cluster with namespaces an address all of them reach.
    """

    def __init__(self, folder: Path, address: str = "127.0.0.1"):
        self.endpoint = f"http://{address}:{free_port()}"
        peer = f"http://{address}:{free_port()}"
        data = folder / "etcd"
        data.mkdir(mode=0o700)
        self.process = ServerProcess(
            "etcd",
            [
                *(packaged_program("etcd"), "--name", "etcd", "--data-dir", data, "--logger", "zap"),
                *("--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *(
                    "--initial-cluster",
                    f"etcd={peer}",
                    "--log-level",
                    "warn",
                    "--quota-backend-bytes",
                    str(4 << 30),
                ),
            ],
            folder / "etcd.log",
        )

    def start(self) -> None:
        self.process.start()
        self.process.wait_until(self.healthy, READY_S_MAX)

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=2.0) as answer:
                return bool(json.load(answer).get("health") == "true")
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def compact(self) -> int:
        """Drop all history up to now. Returns the revision: a watch from before it cannot be served any more."""
        health = json.loads(self._control("endpoint", "status", "-w", "json"))
        revision: int = health[0]["Status"]["header"]["revision"]
        self._control("compact", str(revision))
        return revision

    def _control(self, *arguments: str) -> str:
        command = [str(packaged_program("etcdctl")), "--endpoints", self.endpoint, *arguments]
        env = {**os.environ, "ETCDCTL_API": "3"}
        result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=patient(30), check=False)
        if result.returncode != 0:
            raise RuntimeError(f"etcdctl {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout
