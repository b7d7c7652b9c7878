import sys
from pathlib import Path

import pytest

from holdfast.cli.commands.doctor import probe
from holdfast.cli.output import ExitCode


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("kill -9 $$", ExitCode.UNAVAILABLE),
        ("exit 1", ExitCode.UNAVAILABLE),
        ("exit 2", ExitCode.INVALID),
        ("exit 3", ExitCode.UNAVAILABLE),
    ],
)
def test_a_test_that_ends_without_an_answer_fails_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, code: ExitCode
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{end}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    assert probe.main([], standalone_mode=False) is code
