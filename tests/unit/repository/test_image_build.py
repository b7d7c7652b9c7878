"""What an image is built with is pinned like what is in it."""

import re
import tomllib
from pathlib import Path

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
