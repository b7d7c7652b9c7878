"""The Debian packages of Slurm and of an ssh server.

python tests/slurm/slurm_packages.py      installs what is missing (needs root and apt-get)
"""

import os
import shutil
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "servers"))

from debian_packages import PackagesMissing, install_packages

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "setpriv": "util-linux",
    "openssl": "openssl",
}
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


class SlurmMissing(RuntimeError):
    """This machine cannot have a test cluster of Slurm's. The text says what is missing."""


def install() -> None:
    """Install what is missing. Raises SlurmMissing."""
    if os.geteuid() != 0:
        raise SlurmMissing("slurmd starts steps as other users: run these tests as root")
    try:
        install_packages(_missing)
    except PackagesMissing as error:
        raise SlurmMissing(str(error)) from error
    if left := _missing():
        raise SlurmMissing(f"apt-get installed {', '.join(left)}, and their programs are not there")


def program(name: str) -> str:
    """Where it is; of a server beside what users have on their PATH. Raises SlurmMissing."""
    found = shutil.which(name, path=PATH)
    if found is None:
        raise SlurmMissing(f"there is no {name}: install {PROGRAMS.get(name, name)}")
    return found


def _missing() -> list[str]:
    return sorted({package for name, package in PROGRAMS.items() if shutil.which(name, path=PATH) is None})


if __name__ == "__main__":
    try:
        install()
    except SlurmMissing as error:
        sys.exit(str(error))
