"""Where the programs of the test servers are looked for, and what is said when there is none."""

import http.server
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import kubernetes_binaries
import pytest
from kubernetes_binaries import ProgramMissing, kubernetes_program

NAME = "kube-apiserver"


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with no program of Kubernetes and an empty cache, whose build fails."""
    for folder in ("bin", "cache"):
        (tmp_path / folder).mkdir()
    build = tmp_path / "build.sh"
    build.write_text("echo no sources here; exit 3\n")
    monkeypatch.setattr(kubernetes_binaries, "BUILD_SCRIPT", build)
    monkeypatch.setattr(kubernetes_binaries, "_failed", {})
    (tmp_path / "bin" / "bash").symlink_to("/bin/bash")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("HOLDFAST_ENVTEST_URL", raising=False)


def put_program(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text("#!/bin/sh\n")
    (folder / NAME).chmod(0o755)
    return folder / NAME


@pytest.fixture
def archive_url() -> Iterator[str]:
    """An envtest archive, as its makers lay it out, on loopback."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo(f"controller-tools/envtest/{NAME}")
        entry.mode = 0o755
        archive.addfile(entry)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(packed.getvalue())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/envtest.tar.gz"
        server.shutdown()
        thread.join()


def test_a_named_folder_comes_before_the_path_and_the_path_before_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = put_program(kubernetes_binaries.cache_folder() / f"kubernetes-{kubernetes_binaries.VERSION}")
    assert kubernetes_program(NAME) == cached
    on_path = put_program(tmp_path / "bin")
    assert kubernetes_program(NAME) == on_path
    named = put_program(tmp_path / "assets")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(named.parent))
    assert kubernetes_program(NAME) == named


def test_an_archive_is_fetched_once_from_where_the_environment_says(
    archive_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ENVTEST_URL", archive_url)
    program = kubernetes_program(NAME)
    assert os.access(program, os.X_OK)
    assert kubernetes_program(NAME) == program


def test_a_program_that_cannot_be_got_is_named_with_the_reason_and_what_to_do() -> None:
    with pytest.raises(ProgramMissing) as missing:
        kubernetes_program(NAME)
    for part in (NAME, "KUBEBUILDER_ASSETS", "ended with 3", "no sources here"):
        assert part in str(missing.value)


def test_a_build_that_failed_is_not_tried_again_for_every_test(tmp_path: Path) -> None:
    build = tmp_path / "build.sh"
    build.write_text(f"echo tried >> {tmp_path}/tries; exit 3\n")
    for _ in range(2):
        with pytest.raises(ProgramMissing):
            kubernetes_program(NAME)
    assert (tmp_path / "tries").read_text() == "tried\n"


def test_a_build_has_time_for_as_long_as_it_says_something(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kubernetes_binaries, "SILENT_S_MAX", 2.0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    build = tmp_path / "build.sh"
    # Longer than the silence that is borne, and never silent.
    build.write_text("for i in 1 2 3 4 5 6; do sleep 0.5; echo $i; done; exit 7\n")
    with pytest.raises(ProgramMissing, match="ended with 7"):
        kubernetes_program("kube-proxy-of-this-test")


def test_a_build_that_says_nothing_more_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kubernetes_binaries, "SILENT_S_MAX", 1.0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    build = tmp_path / "build.sh"
    build.write_text(f"echo $$ > {tmp_path}/pid; echo compiling; sleep 3600\n")
    with pytest.raises(ProgramMissing, match=r"said nothing for 1\.0 s[\s\S]*compiling"):
        kubernetes_program("kube-proxy-of-this-test")
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()
