import re
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.api.selftest import Tested, TestLevel, Verdict
from holdfast.cli.commands.doctor import probe
from holdfast.cli.output import ExitCode

FAILED = Tested(number=1, level=TestLevel.LIGHT, verdict=Verdict.FAILED, took_s=2.0, says="gpu 0 is wrong")


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


def test_slurms_prolog_knows_a_verdict_by_what_the_probe_says_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Were the words others, no node would be drained any more."""
    (tmp_path / "told").write_bytes(msgspec.json.encode(FAILED))
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/told\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    assert probe.main([], standalone_mode=False) is ExitCode.FAILED
    prolog = (Path(__file__).parents[3] / "examples" / "slurm" / "prolog.sh").read_text()
    (pattern,) = re.findall(r'grep "(\^.*?)"', prolog)
    assert re.match(pattern, capsys.readouterr().out.splitlines()[-1])
