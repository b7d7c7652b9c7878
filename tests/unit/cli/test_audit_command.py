"""`holdfast audit` without an audit: what it does with the answers, and where there are none."""

import importlib.util
import json
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast.api.audit import Audit, Probe, ProbeAnswer, Soundness
from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.cli.commands.audit import WHAT_TO_CHANGE, audit
from holdfast.cli.output import ExitCode

UNKNOWN = ProbeAnswer.unknown(Probe.AGREEMENT, "no second implementation is given", "give one")
SOUND = ProbeAnswer(probe=Probe.CAUSALITY, verdict=Soundness.SOUND, says="nothing moved", figure=0.0, unit="of it")
SUSPECT = ProbeAnswer(
    probe=Probe.CAUSALITY,
    verdict=Soundness.SUSPECT,
    says="moved",
    figure=0.25,
    unit="of it",
    where="a.b",
    change="mask",
)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What takes Python's place; it writes down what it is called with."""
    path = tmp_path / "python"
    path.touch(mode=0o700)
    monkeypatch.setattr(sys, "executable", str(path))
    return path


def answers(program: Path, *given: ProbeAnswer, **not_run: str) -> None:
    import msgspec

    found = Audit(answers=given, not_run={Probe(name): why for name, why in not_run.items()})
    said = msgspec.json.encode(found).decode()
    program.write_text(f"#!/bin/sh\necho \"$@\" > {program}.called\ncat <<'END'\n{said}\nEND\n")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ((SOUND,), ExitCode.OK),
        ((SOUND, SUSPECT, UNKNOWN), ExitCode.FAILED),
        ((SOUND, UNKNOWN), ExitCode.UNAVAILABLE),
    ],
    ids=["sound", "suspect", "unknown"],
)
def test_the_exit_code_is_that_of_the_worst_answer(
    program: Path, given: tuple[ProbeAnswer, ...], code: ExitCode
) -> None:
    answers(program, *given)
    assert audit.main(["train.py"], standalone_mode=False) is code


def test_answers_are_a_table_with_what_to_change_below_it_and_what_was_not_probed_beside_it(program: Path) -> None:
    answers(program, SUSPECT, UNKNOWN, scaling="no watch")
    done = CliRunner().invoke(audit, ["train.py"], standalone_mode=False)
    assert done.stdout.splitlines() == [
        "VERDICT  PROBE      FIGURE      WHERE  SAYS",
        "suspect  causality  0.25 of it  a.b    moved",
        "unknown  agreement  ?           -      no second implementation is given",
        "",
        WHAT_TO_CHANGE,
        "causality in a.b: mask",
        "agreement: give one",
    ]
    assert done.stderr == "holdfast: scaling was not probed: no watch\n"


def test_an_advice_says_for_which_layers_it_holds(program: Path) -> None:
    def narrow(where: str, change: str) -> ProbeAnswer:
        says = "beyond the largest number"
        return ProbeAnswer(probe=Probe.SCALING, verdict=Soundness.SUSPECT, says=says, where=where, change=change)

    answers(
        program, narrow("blocks.0", "a margin"), narrow("blocks.7", "bfloat16"), narrow("blocks.3", "a margin")
    )
    done = CliRunner().invoke(audit, ["train.py"], standalone_mode=False)
    assert done.stdout.splitlines()[-2:] == [
        "scaling in blocks.0, blocks.3: a margin",
        "scaling in blocks.7: bfloat16",
    ]


def test_as_json_and_by_name(program: Path) -> None:
    answers(program, SUSPECT, SOUND)
    as_json = CliRunner().invoke(audit, ["train.py", "-o", "json"], standalone_mode=False)
    assert json.loads(as_json.stdout)["answers"][0]["where"] == "a.b"
    by_name = CliRunner().invoke(audit, ["train.py", "-o", "name"], standalone_mode=False)
    assert by_name.stdout == "causality/a.b\n"


def test_the_script_gets_its_own_arguments(program: Path) -> None:
    answers(program, SOUND)
    words = ["train.py", "--entry", "small", "--probes", "causality, routing", "--", "--layers", "2"]
    audit.main(words, standalone_mode=False)
    called = program.with_name("python.called").read_text().strip()
    assert called == "-m holdfast.trainer.probes --entry small --probes causality,routing -- train.py --layers 2"


def test_a_probe_that_is_not_there_is_refused_by_its_name() -> None:
    with pytest.raises(
        InvalidInput, match=r"^--probes: 'speed' is not accepted; write some of causality, reduction"
    ):
        audit.main(["train.py", "--probes", "causality,speed"], standalone_mode=False)


@pytest.mark.parametrize(
    ("end", "says"), [("kill -9 $$", "signal 9"), ("exit 1", "exit code 1"), ("exit 0", "code 0")]
)
def test_an_audit_that_ends_without_an_answer_is_not_available(program: Path, end: str, says: str) -> None:
    program.write_text(f"#!/bin/sh\n{end}\n")
    with pytest.raises(Unavailable, match=f"the audit of train.py ended with .*{says} before it had answered"):
        audit.main(["train.py"], standalone_mode=False)


def test_what_the_audit_refuses_is_refused(program: Path) -> None:
    program.write_text("#!/bin/sh\nexit 2\n")
    assert audit.main(["train.py"], standalone_mode=False) is ExitCode.INVALID


def test_without_torch_it_says_what_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Unavailable, match=r"pip install 'holdfast\[torch\]' adds it"):
        audit.main(["train.py"], standalone_mode=False)


def test_without_a_script_it_says_so() -> None:
    with pytest.raises(click.MissingParameter):
        audit.main([], standalone_mode=False)
