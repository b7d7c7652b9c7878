"""A Slurm cluster on this machine: slurmctld, and a slurmd for each node, on ports of their own.

Debian's slurmd takes -N, so that several run on one machine. Nodes have no cgroups here; a process belongs to a
node when its environment says so, which slurmstepd sees to.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from patience import patient
from server_process import ServerProcess, free_port
from slurm_packages import install, program

NODES = ("n1", "n2", "n3")
EXAMPLES = Path(__file__).parents[2] / "examples" / "slurm"
POLL_S = 0.1
COMMAND_S = 60.0
# Clusters side by side on this machine have nodes of the same names: no two have jobs of the same number, for an
# epilog ends what is left of its job on its node. cred_expire, five seconds at least, is also how long a job that
# is queued again waits: two minutes unless told.
CONFIGURATION = """
ClusterName=holdfast
SlurmctldHost={machine}(127.0.0.1)
SlurmctldPort={port}
FirstJobId={first_job}
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=0
SlurmdTimeout=10
KillWait=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,nohold_on_prolog_fail
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
Prolog={folder}/prolog.sh
Epilog={folder}/epilog.sh
PrologFlags=Alloc
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """One cluster. `bad` is a folder: a node with a file of its name there fails the prolog's probe.

    So it does, without a verdict, where the file says `broken`: as an installation that cannot be imported.
    """

    def __init__(self, folder: Path) -> None:
        install()
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.configuration), "TMPDIR": str(folder / "tmp")}
        self.bad = folder / "bad"
        for each in (self.bad, folder / "state", folder / "tmp", *(folder / f"spool-{name}" for name in NODES)):
            each.mkdir()
        lines = (
            f"NodeName={name} NodeHostname={_machine()} NodeAddr=127.0.0.1 Port={free_port()} CPUs=1"
            for name in NODES
        )
        self.configuration.write_text(
            CONFIGURATION.format(
                machine=_machine(),
                port=free_port(),
                first_job=100 * os.getpid(),
                folder=folder,
                nodes="\n".join(lines),
            )
        )
        self._write_prolog()
        log = folder / "slurmctld.log"
        command = (program("slurmctld"), "-D", "-i", "-f", str(self.configuration))
        self._controller = ServerProcess("slurmctld", command, log, self.environment)
        self._nodes = {name: self._node(name) for name in NODES}

    def __enter__(self) -> Self:
        self._controller.start()
        self._controller.wait_until(lambda: self._answers(), patient(20.0))
        for node in self._nodes.values():
            node.start()
        self.wait_until("every node is idle", lambda: all(self.state(name) == "idle" for name in NODES))
        return self

    def __exit__(self, *_: object) -> None:
        for name in NODES:
            self.lose(name)
        self._controller.stop()

    def run(self, *command: str) -> str:
        """What a command of Slurm's, or a script, wrote. Raises CalledProcessError."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=patient(COMMAND_S), check=False
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def state(self, node: str) -> str:
        """sinfo's long word for it."""
        return self.run("sinfo", "-h", "-N", "-n", node, "-o", "%T")

    def reason(self, node: str) -> str:
        """Why it is out of service."""
        return self.run("sinfo", "-h", "-N", "-n", node, "-o", "%E")

    def job(self, job: str) -> dict[str, str]:
        """What the controller knows of a job."""
        pairs = (word.partition("=") for word in self.run("scontrol", "show", "job", "-o", job).split())
        return {name: value for name, _, value in pairs}

    def lose(self, node: str) -> None:
        """A power cut: slurmd, its steps and all their processes at once."""
        daemon = self._nodes[node]
        tasks = self.processes(SLURMD_NODENAME=node)
        keepers = {pid for task in tasks for pid in _ancestors(task) if _name(pid).startswith("slurmstepd")}
        whole = [*keepers, *tasks]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none sees another die
            for pid in whole:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if daemon.running and number is signal.SIGKILL:
                daemon.kill()

    def bring_back(self, node: str) -> None:
        """It is booted again, and whoever looks after it says that it is well."""
        self._nodes[node] = self._node(node)
        self._nodes[node].start()
        self.wait_until(f"{node} answers", lambda: "*" not in self.state(node))
        if self.state(node) in ("down", "drained", "draining"):  # the controller may not have missed it
            self.run("scontrol", "update", f"nodename={node}", "state=resume")

    def processes(self, **variables: str) -> list[int]:
        """Those of this cluster whose environment says so. Those of Slurm's own are not among them."""
        wanted = {f"SLURM_CONF={self.configuration}", *(f"{name}={value}" for name, value in variables.items())}
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
                    if wanted <= set(environment) and int(entry.name) != os.getpid():
                        found.append(int(entry.name))
        return found

    def wait_until(self, what: str, holds: Callable[[], bool], within_s: float = 60.0) -> None:
        """Raises AssertionError with what could not be awaited."""
        deadline = time.monotonic() + patient(within_s)
        while not holds():
            assert time.monotonic() < deadline, f"not within {patient(within_s):.0f} s: {what}"
            time.sleep(POLL_S)

    def _node(self, name: str) -> ServerProcess:
        command: Sequence[str] = (program("slurmd"), "-D", "-N", name, "-f", str(self.configuration))
        return ServerProcess(name, command, self.folder / f"{name}.log", self.environment)

    def _answers(self) -> bool:
        done = subprocess.run(
            ("sinfo", "-h"), env=self.environment, capture_output=True, timeout=COMMAND_S, check=False
        )
        return done.returncode == 0

    def _write_prolog(self) -> None:
        """The examples as they are, with a probe that fails where the test says so: this machine's CPU is well."""
        probe = self.folder / "probe.sh"
        probe.write_text(
            f'#!/bin/sh\ncd {self.bad} && [ -e "$SLURMD_NODENAME" ] || exit 0\n'
            'if grep -q broken "$SLURMD_NODENAME"; then echo "No module named holdfast" >&2; exit 1; fi\n'
            'echo "Failed in 2 s: gpu 0 is wrong"\nexit 1\n'
        )
        probe.chmod(0o755)
        for name in ("prolog.sh", "epilog.sh"):
            script = (EXAMPLES / name).read_text()
            installed = "holdfast=/opt/holdfast/bin/holdfast\n"
            assert (installed in script) == (name == "prolog.sh")
            (self.folder / name).write_text(script.replace(installed, f"holdfast={probe}\n"))
            (self.folder / name).chmod(0o755)


def _machine() -> str:
    return os.uname().nodename.partition(".")[0]


def _ancestors(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            found.append(pid)
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""
