"""What the init container brings into a user's pod: the copying, and the start on the image's own Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

IMAGES = Path(__file__).parents[3] / "images"
HERE = "python{}.{}".format(*sys.version_info)

# Stands in for the launcher: says what it was called with and what it and its children would import from.
SHOWING = """
import os, sys, brought
def launch(prog_name):
    import private
    print(prog_name, *sys.argv[1:])
    print(sys.path[0]); print(sys.path[1]); print(os.environ["PYTHONPATH"])
"""


def _brought(folder: Path, python: str = HERE) -> Path:
    """A volume as the init container leaves it, with a stand-in for the launcher."""
    launch = folder / python / "shared" / "holdfast" / "agent" / "launch"
    launch.mkdir(parents=True)
    (launch / "command.py").write_text(SHOWING)
    (folder / python / "shared" / "brought.py").touch()
    (folder / python / "launcher").mkdir()
    (folder / python / "launcher" / "private.py").touch()
    (folder / "launch").write_bytes((IMAGES / "launch").read_bytes())
    return folder


def _launch(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # As in an image that has never heard of Holdfast: -S leaves out what is installed here.
    command = [sys.executable, "-S", str(folder / "launch"), *arguments]
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, timeout=30)


def test_the_launcher_runs_on_the_images_own_python(tmp_path: Path) -> None:
    folder = _brought(tmp_path)
    ended = _launch(folder, "--nnodes", "1:4", "train.py")
    assert ended.returncode == 0, ended.stderr
    said, first, second, path = ended.stdout.splitlines()
    assert said == "holdfast launch --nnodes 1:4 train.py"
    assert (first, second) == (str(folder / HERE / "shared"), str(folder / HERE / "launcher"))
    assert path == first, "the training script must not see the launcher's own packages"


def test_the_users_own_path_stays_behind_ours(tmp_path: Path) -> None:
    folder = _brought(tmp_path)
    ended = _launch(folder, PYTHONPATH="/users/own")
    assert ended.stdout.splitlines()[-1] == f"{folder / HERE / 'shared'}:/users/own"


def test_an_image_with_another_python_is_told_which_ones_there_are(tmp_path: Path) -> None:
    ended = _launch(_brought(tmp_path, python="python3.99"))
    assert ended.returncode == 1
    assert f"not brought for {HERE}" in ended.stderr
    assert "python3.99" in ended.stderr


def test_a_launcher_that_does_not_load_says_what_it_was_made_for(tmp_path: Path) -> None:
    folder = _brought(tmp_path)
    (folder / HERE / "shared" / "brought.py").unlink()
    ended = _launch(folder)
    assert ended.returncode == 1
    assert "made for glibc" in ended.stderr
    assert "brought" in ended.stderr


def test_a_script_of_any_python_can_at_least_say_that_it_is_too_old() -> None:
    """No syntax newer than Python 3.6: an old image has to get the sentence, not a syntax error."""
    compile((IMAGES / "launch").read_text(), "launch", "exec", _feature_version=6)


def _install(source: Path, destination: Path) -> None:
    text = (IMAGES / "install").read_text().replace("/launcher/", f"{source}/")
    subprocess.run(["sh", "-c", text, "install", str(destination)], check=True, timeout=30)


@pytest.mark.parametrize("times", [1, 2])
def test_installing_copies_everything_once_or_twice(tmp_path: Path, times: int) -> None:
    source, destination = tmp_path / "launcher", tmp_path / "volume"
    _brought(source)
    (source / "install").touch()
    destination.mkdir()
    for _ in range(times):
        _install(source, destination)
    assert sorted(path.name for path in destination.iterdir()) == ["launch", HERE]
    assert (destination / HERE / "shared" / "brought.py").stat().st_mode & 0o444 == 0o444


def test_installing_nowhere_is_refused() -> None:
    ended = subprocess.run(["sh", str(IMAGES / "install")], capture_output=True, text=True, timeout=30)
    assert ended.returncode != 0
    assert "say where: /install DEST" in ended.stderr
