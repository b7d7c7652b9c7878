"""Finds the programs that tests need, or gets them: Kubernetes, etcd, Redis, Prometheus.

For a Kubernetes program the places are tried in this order:

1. the folder named by KUBEBUILDER_ASSETS;
2. PATH;
3. the cache: $XDG_CACHE_HOME/holdfast/kubernetes-VERSION (~/.cache when unset), never inside the checkout;
4. the envtest archive (etcd, kube-apiserver, kubectl in one .tar.gz) at the address in HOLDFAST_ENVTEST_URL,
   unpacked into a cache folder of its own; this step is left out when the variable is unset;
5. Debian's source package, built by build_kubernetes.sh into the cache (once per machine, minutes). It may take as
   long as it needs; it is given up when its log has not grown for a long time.

    python tests/servers/kubernetes_binaries.py [PROGRAM...]      gets these, or all, before anybody needs them

etcd, redis-server and Prometheus with its Alertmanager are Debian packages.
Source: https://book.kubebuilder.io/reference/envtest (what the archive holds and what KUBEBUILDER_ASSETS means)
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

VERSION = "1.20.2"
# How long a build may say nothing. It names every package that it compiles; its longest silences, while the API's
# document is generated and while a program is linked, are well below a minute on two quiet cores.
SILENT_S_MAX = 600.0
LOOK_S = 0.2
INSTALL_S_MAX = 1200.0  # a package manager that is not ready by then hangs
DOWNLOAD_S_MAX = 20.0  # to the first answer: a place that is slower than this is taken as not reachable
BUILD_SCRIPT = Path(__file__).parent / "build_kubernetes.sh"
PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "kube-proxy",
)
IN_ARCHIVE = ("kube-apiserver", "kubectl", "etcd")
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


_failed: dict[str, ProgramMissing] = {}


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "holdfast"


def kubernetes_program(name: str) -> Path:
    """The path of kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy or kubectl.

    Raises ProgramMissing. Two test runs that ask at once do not build twice.
    """
    found = _present(name)
    if found:
        return found
    if name in _failed:  # a build that failed is not tried again for each test
        raise _failed[name]
    with _locked("lock"):
        try:
            return _present(name) or _downloaded(name) or _built(name)
        except ProgramMissing as error:
            _failed[name] = error
            raise


def packaged_program(name: str) -> Path:
    """The path of one of PACKAGES; installs its Debian package when it is missing. Raises ProgramMissing."""
    found = _in_assets(name) or _on_path(name)
    if found:
        return found
    try:
        install_packages(lambda: [] if _on_path(name) else [PACKAGES[name]])
    except PackagesMissing as error:
        raise ProgramMissing(
            f"{name} is not on PATH and {error}. Install {name} yourself and run again."
        ) from error
    found = _on_path(name)
    if found is None:
        raise ProgramMissing(f"{name} is not on PATH though {PACKAGES[name]} is installed")
    return found


def _present(name: str) -> Path | None:
    cached = (cache_folder() / f"kubernetes-{VERSION}", cache_folder() / _archive_folder())
    return _in_assets(name) or _on_path(name) or next(filter(_runs, (each / name for each in cached)), None)


def _in_assets(name: str) -> Path | None:
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    return Path(folder) / name if folder and _runs(Path(folder) / name) else None


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


def _runs(path: Path) -> bool:
    return os.access(path, os.X_OK)


def _archive_folder() -> str:
    address = os.environ.get("HOLDFAST_ENVTEST_URL", "")
    return "envtest-" + hashlib.sha256(address.encode()).hexdigest()[:12]


def _downloaded(name: str) -> Path | None:
    address = os.environ.get("HOLDFAST_ENVTEST_URL")
    if not address or name not in IN_ARCHIVE:
        return None
    folder = cache_folder() / _archive_folder()
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "envtest.tar.gz"
    try:
        with urllib.request.urlopen(address, timeout=DOWNLOAD_S_MAX) as answer, archive.open("wb") as file:
            shutil.copyfileobj(answer, file)
        with tarfile.open(archive) as packed:
            for member in packed.getmembers():
                member.name = Path(member.name).name  # the archive has a folder in front
                if member.isfile() and member.name in IN_ARCHIVE:
                    packed.extract(member, folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        print(f"no envtest archive from HOLDFAST_ENVTEST_URL={address}: {error}; building instead")
        return None
    finally:
        archive.unlink(missing_ok=True)
    return folder / name if _runs(folder / name) else None


def _built(name: str) -> Path:
    folder = cache_folder() / f"kubernetes-{VERSION}"
    log = cache_folder() / f"build-{name}.txt"
    with log.open("wb") as output:
        command = ["bash", str(BUILD_SCRIPT), str(folder), name]
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            code = ended_unless_silent(process, log, SILENT_S_MAX)
        finally:
            if process.poll() is None:  # silent for too long, or this program was interrupted
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code != 0 or not _runs(folder / name):
        how = f"ended with {code}" if code is not None else f"said nothing for {SILENT_S_MAX} s and was ended"
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
        raise ProgramMissing(
            f"{name}: not in KUBEBUILDER_ASSETS, on PATH or in {folder}, and building it {how}. "
            f"Set KUBEBUILDER_ASSETS to a folder that has it, or see {log}, which ends with:\n{tail}"
        )
    return folder / name


def ended_unless_silent(process: subprocess.Popen[bytes], log: Path, silent_s_max: float) -> int | None:
    """Its exit status, however long it takes; None when it goes on and its log has not grown for so long."""
    size, grew = -1, time.monotonic()
    while (code := process.poll()) is None:
        now = time.monotonic()
        if log.stat().st_size != size:
            size, grew = log.stat().st_size, now
        if now - grew > silent_s_max:
            return None
        time.sleep(LOOK_S)
    return code


def install_packages(missing: Callable[[], Sequence[str]]) -> None:
    """Install the Debian packages that `missing` names, asked again when nobody else installs any.

    Raises PackagesMissing. build_kubernetes.sh installs under the same lock.
    """
    if not missing():
        return
    with _locked("apt.lock"):
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
def _locked(name: str) -> Iterator[None]:
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        for each in sys.argv[1:] or PROGRAMS:
            print(kubernetes_program(each))
    except ProgramMissing as error:
        sys.exit(str(error))
