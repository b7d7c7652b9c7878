"""What an image is built with is pinned like what is in it."""

import importlib
import re
import tomllib
from pathlib import Path

import psutil
import pytest
from parts import PARTS

ROOT = Path(__file__).parents[3]
CONSTRAINTS = "/src/constraints.txt"


def test_what_builds_the_wheel_is_pinned() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    named = {re.split(r"[<>=~!\[; ]", each)[0] for each in asked}
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert named <= set(pins)


def test_every_stage_that_installs_is_held_to_the_constraints_once_they_are_there() -> None:
    stages = re.split(r"(?m)^FROM ", (ROOT / "images" / "Dockerfile").read_text())[1:]
    (source,) = [each for each in stages if each.partition("\n")[0].endswith(" AS source")]
    copied, pinned = source.index("constraints.txt images/"), source.index("ENV PIP_CONSTRAINT")
    assert copied < pinned, "a constraint that is not there yet fails every command of pip"
    assert source[:pinned].count("RUN") == 0
    for name in ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"):
        assert re.search(rf"(?m)^ENV .*\b{name}={CONSTRAINTS}\b", source), name
    for stage in stages:
        head = stage.partition("\n")[0]
        if "pip wheel" in stage:
            assert head.startswith("source AS"), f"{head}: what it builds with is not pinned"


def test_a_build_that_takes_too_long_leaves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "cluster"))
    images = importlib.import_module("holdfast_images")
    monkeypatch.setattr(images, "BUILD_S_MAX", 0.2)
    with pytest.raises(images.BuildFailed, match="took more than 0 s: 4711"):
        images._run("sh", "-c", "sleep 4711 & echo 4711 >&2; wait")
    left = [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == ["sleep", "4711"]]
    assert [each for each in left if each.status() != psutil.STATUS_ZOMBIE] == []


def test_every_part_is_sent_to_the_builder_and_copied() -> None:
    sent = (ROOT / "images" / "Dockerfile.dockerignore").read_text().splitlines()
    copied = (ROOT / "images" / "Dockerfile").read_text().splitlines()
    assert [part for part in PARTS if f"!{part}" not in sent or f"COPY {part} {part}" not in copied] == []
