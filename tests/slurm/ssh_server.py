"""An ssh server on this machine that stands for three: each name is an alias of it.

What runs for a name is known by its variable LC_HOLDFAST_HOST, which the client sends and the server takes.
"""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

from patience import patient
from server_process import ServerProcess, free_port
from slurm_packages import install, program

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
UNREACHED = "127.0.0.5"  # known to ssh, and nothing listens there
SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/server
AuthorizedKeysFile {folder}/user.pub
PidFile none
StrictModes no
UsePAM no
AcceptEnv LC_HOLDFAST_HOST
PermitRootLogin prohibit-password
PasswordAuthentication no
"""
CLIENT = """
Host {host}
  HostName 127.0.0.1
  Port {port}
  User root
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking no
  LogLevel ERROR
  SetEnv LC_HOLDFAST_HOST={host}
"""


class SshServer:
    """`command` is how ssh is called so that it knows the names."""

    def __init__(self, folder: Path) -> None:
        install()
        for name in ("server", "user"):
            words = (program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
            subprocess.run(words, check=True, timeout=patient(20.0))
        port = free_port()
        Path("/run/sshd").mkdir(exist_ok=True)  # where Debian's server shuts itself in
        (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder))
        clients = (CLIENT.format(host=host, port=port, folder=folder) for host in HOSTS)
        unreached = CLIENT.format(host=UNREACHED, port=9, folder=folder)
        (folder / "ssh_config").write_text("".join((*clients, unreached)))
        self.command = f"ssh -F {folder / 'ssh_config'}"
        words = (program("sshd"), "-D", "-e", "-f", str(folder / "sshd_config"))
        self._server = ServerProcess("sshd", words, folder / "sshd.log")

    def __enter__(self) -> Self:
        self._server.start()
        self._server.wait_until(self._answers, patient(20.0))
        return self

    def __exit__(self, *_: object) -> None:
        for host in HOSTS:
            self.lose(host)
        self._server.stop()

    def lose(self, host: str) -> None:
        """Everything that runs there, at once."""
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in self.processes(host):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def processes(self, host: str) -> list[int]:
        """What was started there by ssh, and what that started."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    if f"LC_HOLDFAST_HOST={host}".encode() in variables:
                        found.append(int(entry.name))
        return found

    def _answers(self) -> bool:
        words = (*self.command.split(), HOSTS[0], "true")
        return subprocess.run(words, capture_output=True, timeout=patient(20.0), check=False).returncode == 0
