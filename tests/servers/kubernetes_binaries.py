"""Finds the programs of Kubernetes and containerd that tests need, or gets them.

The places are tried in this order. PATH is none of them: what lies there may be of another release.

1. the folder named by KUBEBUILDER_ASSETS (for the oldest release KUBEBUILDER_ASSETS_OLDEST);
2. the cache: $XDG_CACHE_HOME/holdfast/NAME-VERSION (~/.cache when unset), inside the checkout only where that
   cannot be written;
3. the download that its makers publish, with its checksum;
4. published Go modules, built by go_modules.py into the cache, once per machine, in minutes. A build may take as
   long as it needs; it is given up when its log has not grown for a long time.

    python tests/servers/kubernetes_binaries.py [newest | oldest | containerd]...      gets these, or all

The newest and the oldest release are those of holdfast.api.kubernetes_versions. Tests run on the newest, or on the
one that HOLDFAST_TEST_KUBERNETES names.
Source: https://book.kubebuilder.io/reference/envtest (what KUBEBUILDER_ASSETS means)
Source: https://kubernetes.io/releases/download/ (where programs and their checksums are)
"""

import functools
import hashlib
import http.client
import os
import platform
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from debian_packages import ProgramMissing, cache_folder, locked

# Read from its file: this runs before Holdfast is installed.
SUPPORTED = runpy.run_path(str(Path(__file__).parents[2] / "api" / "holdfast" / "api" / "kubernetes_versions.py"))
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
# How long a build may say nothing. It names every package that it compiles; its longest silence, while a program
# is linked, is well below a minute on two quiet cores.
SILENT_S_MAX = 600.0
LOOK_S = 0.2
CHECKSUM_BYTES_MAX = 1024
ANSWER_S_MAX = 60.0  # a program that does not even say its version by then hangs
DOWNLOAD_S_MAX = 20.0  # to the first answer: a place that is slower than this is taken as not reachable
BUILD = (sys.executable, str(Path(__file__).parent / "go_modules.py"))
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


@dataclass(frozen=True)
class Release:
    """Programs of one version, kept in one folder."""

    name: str
    version: str
    programs: tuple[str, ...]
    assets: str = ""  # the variable that names a folder which has them

    @property
    def folder(self) -> Path:
        return cache_folder() / f"{self.name}-{self.version}"

    def program(self, name: str) -> Path:
        """The path of one of its programs. Raises ProgramMissing. Two runs that ask at once do not build twice."""
        found = self._present(name)
        if found:
            return found
        if (self, name) in _failed:  # a build that failed is not tried again for each test
            raise _failed[self, name]
        with locked(f"{self.name}.lock"):
            try:
                return self._present(name) or self._downloaded(name) or self._built(name)
            except ProgramMissing as error:
                _failed[self, name] = error
                raise

    def _present(self, name: str) -> Path | None:
        assets = os.environ.get(self.assets) if self.assets else None
        if assets and os.access(named := Path(assets) / name, os.X_OK):
            minor = self.version.rpartition(".")[0]
            if (said := minor_of(named)) not in ("", minor):
                raise ProgramMissing(
                    f"{self.assets}: {named} is of {said}, and these tests are of {minor}. "
                    f"Name a folder with {self.version}, or unset {self.assets}."
                )
            return named
        return self.folder / name if os.access(self.folder / name, os.X_OK) else None

    def _downloaded(self, name: str) -> Path | None:
        """From its makers; None where they cannot be reached."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / f"{name}.downloading"
        try:
            if self.name == "kubernetes":
                address = f"https://dl.k8s.io/release/v{self.version}/bin/linux/{ARCHITECTURE}/{name}"
                fetch(address, f"{address}.sha256", unfinished)
            else:
                releases = "https://github.com/containerd/containerd/releases/download"
                file = f"containerd-{self.version}-linux-{ARCHITECTURE}.tar.gz"
                address = f"{releases}/v{self.version}/{file}"
                archive = self.folder / file
                fetch(address, f"{address}.sha256sum", archive)
                take_out(archive, f"bin/{name}", unfinished)
        except (OSError, tarfile.TarError, KeyError, http.client.HTTPException) as error:
            print(f"{name} {self.version} not downloaded: {error}; building it")
            return None
        unfinished.chmod(0o755)
        return unfinished.rename(self.folder / name)

    def _built(self, name: str) -> Path:
        log = cache_folder() / f"build-{self.name}-{self.version}-{name}.txt"
        with log.open("wb") as output:
            command = [*BUILD, str(self.folder), self.name, self.version, name]
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            try:
                code = ended_unless_silent(process, log, SILENT_S_MAX)
            finally:
                if process.poll() is None:  # silent for too long, or this program was interrupted
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        found = self._present(name)
        if code != 0 or found is None:
            how = f"ended with {code}" if code is not None else f"said nothing for {SILENT_S_MAX} s and was ended"
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            set_it = f"Set {self.assets} to a folder that has it" if self.assets else f"Put it into {self.folder}"
            raise ProgramMissing(
                f"{name} {self.version}: not in {self.assets or 'the cache'} or {self.folder}, not downloaded, "
                f"and building it {how}. {set_it}, or see {log}, which ends with:\n{tail}"
            )
        return found


NEWEST = Release(
    "kubernetes",
    SUPPORTED["NEWEST_TRIED"],
    (*CONTROL_PLANE, "kubelet", "kube-proxy", "dra-test-driver"),
    "KUBEBUILDER_ASSETS",
)
OLDEST = Release("kubernetes", SUPPORTED["OLDEST_TRIED"], CONTROL_PLANE, "KUBEBUILDER_ASSETS_OLDEST")
CONTAINERD = Release("containerd", "2.4.2", ("containerd", "containerd-shim-runc-v2", "ctr"))
RELEASES = {"newest": NEWEST, "containerd": CONTAINERD, "oldest": OLDEST}

_failed: dict[tuple[Release, str], ProgramMissing] = {}


def kubernetes_program(name: str) -> Path:
    """The path of kube-apiserver, kubectl or another, of this run's release. Raises ProgramMissing."""
    return RELEASES[os.environ.get("HOLDFAST_TEST_KUBERNETES", "newest")].program(name)


@functools.cache
def minor_of(program: Path) -> str:
    """The release that a program of Kubernetes says it is of, such as 1.37; empty where it says none.

    Raises ProgramMissing where it cannot be run.
    """
    asked = ("version", "--client") if program.name == "kubectl" else ("--version",)
    try:
        said = subprocess.run([program, *asked], capture_output=True, text=True, timeout=ANSWER_S_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:  # of another machine, or not whole
        raise ProgramMissing(f"{program} cannot be run: {error}") from error
    found = re.search(r"\bv(\d+\.\d+)\.\d", said.stdout)
    return found[1] if found else ""


def fetch(address: str, checksum_address: str, path: Path) -> None:
    """Get a file whole. Raises OSError, also where it is not what its checksum says."""
    path.unlink(missing_ok=True)
    with urllib.request.urlopen(checksum_address, timeout=DOWNLOAD_S_MAX) as answer:
        wanted = answer.read(CHECKSUM_BYTES_MAX).decode(errors="replace").partition(" ")[0].strip()
    if re.fullmatch(r"[0-9a-f]{64}", wanted) is None:  # a proxy's page of excuses, which comes with a good status
        raise OSError(f"{checksum_address} has no checksum, but {wanted[:40]!r}")
    with urllib.request.urlopen(address, timeout=DOWNLOAD_S_MAX) as answer, path.open("wb") as file:
        shutil.copyfileobj(answer, file)
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != wanted:
        path.unlink()
        raise OSError(f"{address} has the checksum {got}, and {wanted} is published")


def take_out(archive: Path, member: str, path: Path) -> None:
    """One file of an archive. Raises OSError, TarError; KeyError where it has no such file."""
    with tarfile.open(archive) as packed:
        inside = packed.extractfile(member)
        if inside is None:
            raise OSError(f"{archive.name} has no file {member}")
        with path.open("wb") as file:
            shutil.copyfileobj(inside, file)


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


if __name__ == "__main__":
    try:
        for each in sys.argv[1:] or RELEASES:
            for program in RELEASES[each].programs:
                print(RELEASES[each].program(program), flush=True)
    except ProgramMissing as error:
        sys.exit(str(error))
