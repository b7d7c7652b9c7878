"""Images without a registry: small ones are written here, and all are unpacked once for all nodes.

Unpacking is the slow part. It is done by one containerd into a template folder; a node's own containerd starts on
a copy of it, in which the layers (never written to again) are hard links and only the database is its own.
"""

import hashlib
import io
import json
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from kubernetes_binaries import CONTAINERD
from machine import Machine
from node_files import CONTAINERD_CONFIG, CONTAINERD_SOCKET, PAUSE_IMAGE
from patience import patient

READY_S_MAX = patient(20.0)
IMPORT_S_MAX = patient(300.0)
BUSYBOX_IMAGE = "test.holdfast/busybox:1"


def write_archive(
    path: Path, name: str, files: Mapping[str, Path | str], entrypoint: Sequence[str], *, links: Sequence[str] = ()
) -> Path:
    """A docker-archive of one layer. `files` maps a path inside to a file here or to text; `links` go to busybox.

    Source: https://github.com/moby/moby/blob/master/image/spec/spec.md
    """
    layer = _layer(files, links)
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(entrypoint), "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps(
        [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    ).encode()
    with tarfile.open(path, "w") as archive:
        for inside, content in (
            (config_name, config),
            (f"{digest}/layer.tar", layer),
            ("manifest.json", manifest),
        ):
            _add(archive, inside, content)
    return path


def basic_archives(folder: Path) -> list[Path]:
    """The image that holds a pod's namespaces open, and one with a shell and an HTTP server."""
    busybox = program_files("busybox")
    files: dict[str, Path | str] = {**busybox, "etc/nsswitch.conf": "hosts: files dns\n"}
    applets = subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split()
    pause = ("/bin/busybox", "sleep", "2147483647")  # containerd ends it by SIGKILL, so no handler is needed
    folder.mkdir(parents=True, exist_ok=True)
    return [
        write_archive(folder / "pause.tar", PAUSE_IMAGE, busybox, pause),
        write_archive(folder / "busybox.tar", BUSYBOX_IMAGE, files, ("/bin/sh",), links=applets),
    ]


def program_files(name: str) -> dict[str, Path | str]:
    """A program of this machine as bin/NAME, with the shared libraries it is linked to where it looks for them."""
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not on PATH")
    listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in listed.split() if word.startswith("/")]
    return {f"bin/{name}": Path(found), **{each.lstrip("/"): Path(each) for each in libraries}}


def start_containerd(machine: Machine) -> None:
    config = machine.folder / "containerd.toml"
    config.write_text(CONTAINERD_CONFIG)
    program = CONTAINERD.program("containerd")
    # It looks for the program that keeps a pod on PATH, where one of another version may lie.
    path = f"PATH={program.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    with _readiness(machine.folder / "ready.sock") as is_ready:
        told = "NOTIFY_SOCKET=/srv/ready.sock"
        process = machine.spawn("containerd", "env", path, told, program, "--config", "/srv/containerd.toml")
        process.wait_until(is_ready, READY_S_MAX)


@contextmanager
def _readiness(path: Path) -> Iterator[Callable[[], bool]]:
    """Whether a service has said at this socket that it is up, as it says to systemd. Source: sd_notify(3).

    containerd answers `version` earlier, when a kubelet that asks it for pods is still refused and ends.
    """
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(path))
        told.settimeout(0)

        def is_ready() -> bool:
            try:
                return b"READY=1" in told.recv(4096).split(b"\n")
            except BlockingIOError:
                return False

        yield is_ready


def _ctr() -> tuple[str | Path, ...]:
    return (CONTAINERD.program("ctr"), "--address", CONTAINERD_SOCKET)


def load(machine: Machine, archive: Path) -> None:
    """Import an archive (docker or OCI) into a machine whose containerd runs.

    While it is unpacked, containerd may collect a layer that it shares with the image it replaces: it is imported
    once more then.
    """
    command = (*_ctr(), "-n", "k8s.io", "images", "import", archive)
    try:
        machine.run(*command, timeout_s=IMPORT_S_MAX)
    except RuntimeError as error:
        if "parent snapshot" not in str(error):
            raise
        machine.run(*command, timeout_s=IMPORT_S_MAX)


def template(folder: Path, archives: Sequence[Path]) -> Path:
    """The root of a containerd that has these images, unpacked, and maybe others of earlier runs.

    Only archives that changed are imported again.
    """
    stamp, root = folder / "made-of.json", folder / "containerd"
    has = json.loads(stamp.read_text()) if stamp.exists() else {}
    made_by = f"{CONTAINERD.version}\n{CONTAINERD_CONFIG}"
    if has.pop("containerd", None) != made_by:
        shutil.rmtree(folder, ignore_errors=True)
        has = {}
    wanted = {str(each): _digest(each) for each in archives}
    changed = [path for path, digest in wanted.items() if has.get(path) != digest]
    if changed:
        stamp.unlink(missing_ok=True)  # a template that is half made has none
        _import_into(folder, [Path(each) for each in changed])
        stamp.write_text(json.dumps({"containerd": made_by, **has, **wanted}))
    return root


def _import_into(folder: Path, archives: Sequence[Path]) -> None:
    machine = Machine("template", folder)
    try:
        machine.start()
        start_containerd(machine)
        for archive in archives:
            load(machine, archive)
        machine.programs["containerd"].stop()
    finally:
        machine.kill()


def copy_root(template_root: Path, root: Path) -> None:
    """A containerd root that starts as the template is."""
    shutil.rmtree(root, ignore_errors=True)
    root.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-al", template_root, root], check=True)
    for database in root.rglob("*.db"):
        content = database.read_bytes()
        database.unlink()  # the link, not the template's file
        database.write_bytes(content)


def _layer(files: Mapping[str, Path | str], links: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in ("bin", "tmp", "etc", "root"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            layer.addfile(entry)
        for inside, content in files.items():
            _add(layer, inside, content.encode() if isinstance(content, str) else content.read_bytes(), mode=0o755)
        for link in sorted(set(links) - {"busybox"}):
            entry = tarfile.TarInfo(f"bin/{link}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "/bin/busybox"
            layer.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, inside: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(inside)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
