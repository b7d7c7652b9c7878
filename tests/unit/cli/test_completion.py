import subprocess
import sys

import pytest

from holdfast.cli.main import answer, kubectl_completion_main, suggestions
from holdfast.cli.target import Program


def test_kubectl_is_answered_with_words_descriptions_and_a_directive() -> None:
    assert suggestions(["sta"]) == ["status\tWhere a job is.", "stacks\tWhere each rank stands now.", ":4"]
    assert suggestions(["completion", "z"]) == ["zsh", ":4"]
    assert suggestions(["status", "--conte"]) == ["--context\tThe kubeconfig context to use.", ":4"]


def test_kubectl_is_not_offered_what_runs_on_this_machine() -> None:
    words = {line.partition("\t")[0] for line in suggestions([])}
    assert "status" in words
    assert "run" not in words


def test_a_completion_that_fails_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> list[str]:
        raise RuntimeError("boom")

    monkeypatch.setattr("holdfast.cli.main.suggestions", fail)
    kubectl_completion_main()
    assert capsys.readouterr().out == ":4\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script_that_asks_holdfast(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["completion", shell]) == 0
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_kubectl_needs_no_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["completion", "bash"], Program.KUBECTL) == 0
    assert "kubectl completes its plugins itself" in capsys.readouterr().err


def test_holdfast_answers_its_shell_script() -> None:
    code = "from holdfast.cli.main import main; main()"
    words = {"_HOLDFAST_COMPLETE": "zsh_complete", "COMP_WORDS": "holdfast stat", "COMP_CWORD": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=words, capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout == "plain\nstatus\nWhere a job is.\n"
