"""docs/planner.md as somebody reads it: its files are written, its commands run, and they say what it shows."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakewatchdog import fake_watchdog
from test_doctor_plan import FLEET, RATES
from wireobjects import JOB, a_status

from holdfast.cli.main import answer

PAGE = Path(__file__).parents[3] / "docs" / "planner.md"
ELIDED = "…"


def blocks() -> Iterator[tuple[str, str, str]]:
    """Language, name of the file where it is one, and content of every block."""
    text = PAGE.read_text()
    for found in re.finditer(r"(?:`(\S+\.yaml)`:\n\n)?```(\w+)\n(.*?)```", text, re.DOTALL):
        yield found[2], found[1] or "", found[3]


def commands(content: str) -> Iterator[tuple[list[str], list[str]]]:
    """The words of each command of a block, and the lines that it says."""
    for part in content.split("$ ")[1:]:
        first, *lines = part.rstrip("\n").split("\n")
        yield shlex.split(first), lines


def fits(shown: str, said: str) -> bool:
    """Whether a line of the page is what was said; how columns are spaced depends on lines that are left out."""
    begin, is_elided, _ = shown.partition(ELIDED)
    ours, theirs = " ".join(begin.split()), " ".join(said.split())
    return theirs.startswith(ours) if is_elided else theirs == ours


def test_every_command_of_the_page_says_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    ran = 0
    with fake_watchdog(tmp_path / "run") as watchdog:
        watchdog.answers["GET status"] = (200, a_status(world_size=64, step_time_s=8.157, rates=RATES))
        watchdog.answers["GET nodes"] = (200, [])
        watchdog.answers["GET /v1/fleet"] = (200, FLEET)
        for language, file, content in blocks():
            if file:
                (tmp_path / file).write_text(content)
            for words, lines in commands(content) if language == "console" else ():
                program, *rest = words
                assert program == "holdfast"
                if "--state-dir" in rest:  # of the job that the watchdog knows
                    job = tmp_path / rest[1]
                    job.write_text(job.read_text().replace("name: gpt-8b\n", "name: gpt\n  namespace: research\n"))
                assert answer(rest) == 0, words
                ran += 1
                said = iter(capsys.readouterr().out.splitlines())
                for shown in lines:
                    if shown != ELIDED:
                        assert any(fits(shown, each) for each in said), (words, shown)
    assert JOB == "research/gpt"
    assert ran == PAGE.read_text().count("\n$ holdfast") >= 9
