"""One machine of the test cluster: namespaces of its own for network, processes, mounts and host name.

All of it hangs on one process, its init. When that dies, the kernel ends every process of the machine at once and
takes its mounts, network and packet filter with it, as when a machine loses power. So nothing is left to clean up
but the folder that is its disk and its control groups.
"""

import subprocess
import uuid
from pathlib import Path

import psutil
from patience import patient
from server_process import ServerProcess

START_S_MAX = patient(20.0)
# $0 is the disk, $1 the name. It reaps what is left to it, as an init does. The machine knows its own name and has
# no name server: the one outside cannot be reached from there, and a program would wait seconds for its answer.
INIT = """
set -e
mount --make-rshared /
mkdir -p "$0/log" "$0/kubelet" /var/lib/kubelet
mount --bind "$0/log" /var/log
mount --bind "$0/kubelet" /var/lib/kubelet
mount --bind "$0" /srv
mount -t tmpfs -o mode=755 machine /run
mkdir /run/lock /run/containerd
echo "$1" > /proc/sys/kernel/hostname
echo "127.0.0.1 localhost $1" > /run/hosts
mount --bind /run/hosts /etc/hosts
: > /run/resolv.conf
mount --bind /run/resolv.conf "$(readlink -f /etc/resolv.conf)"
: > /srv/up
while :; do sleep 3600 & wait; done
"""
GONE = "gone-"  # begins the name of a disk that was thrown away
MARK = "holdfast-test-machine"  # in the command line of every init, so that a lost one is found


class Machine:
    """`folder` is its disk, seen inside as /srv; it survives `kill` and `start`. /run does not.

    Its parts `log` and `kubelet` are at /var/log and /var/lib/kubelet too, where pods look for them.
    """

    def __init__(self, name: str, folder: Path):
        self.name = name
        self.folder = folder
        self.programs: dict[str, ServerProcess] = {}
        (folder / "log").mkdir(parents=True, exist_ok=True)
        own = ("--mount", "--pid", "--net", "--uts", "--fork", "--mount-proc", "--kill-child=KILL")
        command: list[str | Path] = ["unshare", *own, "sh", "-c", INIT, folder, name, MARK]
        self.process = ServerProcess(f"machine {name}", command, folder / "log" / "init.txt")
        self.init = 0  # its process number, as this machine counts; 0 when it is off

    def start(self) -> None:
        up = self.folder / "up"
        up.unlink(missing_ok=True)
        self.process.start()
        self.process.wait_until(up.exists, START_S_MAX)
        self.init = psutil.Process(self.process.pid).children()[0].pid

    def kill(self) -> None:
        """Everything on it ends at once; nothing has time to say so."""
        self.process.kill()
        self.init = 0
        for program in self.programs.values():
            program.kill()
        self.programs.clear()

    def spawn(self, name: str, *command: str | Path) -> ServerProcess:
        """Start a program on the machine. Its log is NAME.txt below `log`."""
        program = ServerProcess(name, [*self._enter(), *command], self.folder / "log" / f"{name}.txt")
        program.start()
        self.programs[name] = program
        return program

    def run(self, *command: str | Path, timeout_s: float = 60.0) -> str:
        """Run a command on the machine. Raises CalledProcessError; what it printed is in there."""
        result = subprocess.run(
            [*self._enter(), *map(str, command)],
            capture_output=True,
            text=True,
            timeout=patient(timeout_s),
            check=False,
        )
        if result.returncode != 0:
            said = f"{result.stdout}{result.stderr}"
            raise RuntimeError(
                f"{self.name}: {' '.join(map(str, command))} ended with {result.returncode}: {said}"
            )
        return result.stdout

    def _enter(self) -> list[str]:
        if not self.init:
            raise RuntimeError(f"machine {self.name} is off")
        return ["nsenter", "--target", str(self.init), "--mount", "--pid", "--net", "--uts", "--wd=/", "--"]


def erase(folder: Path) -> None:
    """Throw away the disk of a machine that is off. Its place is free at once; the files go in the background."""
    if folder.exists():
        folder.rename(folder.with_name(f"{GONE}{uuid.uuid4()}"))
    # Also what an earlier run had no time for.
    command = ("sh", "-c", f'rm -rf "$0"/{GONE}* &', str(folder.parent))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_lost() -> None:
    """End the machines that an earlier run left, if even its guards were killed."""
    for process in psutil.process_iter(["cmdline"]):
        if MARK in (process.info["cmdline"] or ()):
            process.kill()
            process.wait(START_S_MAX)
