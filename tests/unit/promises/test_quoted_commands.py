"""Every command line that a document quotes is parsed by the program it names."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from inventory import ROOT, command_called

from holdfast.agent.settings import _parser as agent_parser
from holdfast.cli.main import holdfast
from holdfast.cli.target import Program

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# History keeps the commands of its day.
HISTORY = ROOT / "docs" / "adr"
PLACEHOLDERS = {"NODES": "8", "STEP": "1000", "BATCHES": "10", "ROUND": "4", "R": "3", "N": "2", "K": "2"}
PROGRAMS = ("kubectl holdfast ", "holdfast ")


def quoted_commands(page: Path) -> Iterator[str]:
    """What a page says to type: in a console block after its `$`, or between backticks."""
    text = page.read_text()
    typed = re.findall(r"^\s*\$ ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    prose = " ".join(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).split("\n"))
    for line in (*typed, *re.findall(r"`([^`]*)`", prose)):
        command = line.replace("\\\n", " ").strip()
        if command.startswith(PROGRAMS) and "..." not in command:
            yield command


def words_of(command: str) -> list[str]:
    """As a shell would split it, with what stands for a number made one, up to a pipe."""
    bare = re.sub(r"\[[^]]*\]", "", command)
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(bare, comments=True)]
    ends = [place for place, word in enumerate(words) if word in ("|", ">", "&", "&&", "2>&1")]
    return words[: ends[0]] if ends else words


def problem_of(command: str) -> str | None:
    """What the program would say of it; None where it would begin."""
    words = words_of(command)
    program = Program.KUBECTL if words[0] == "kubectl" else None
    arguments = words[words.index("holdfast") + 1 :]
    if arguments and arguments[0] == "agent":
        known = {flag for action in agent_parser()._actions for flag in action.option_strings}
        unknown = {word.partition("=")[0] for word in arguments if word.startswith("--")} - known
        return f"agent has no {sorted(unknown)}" if unknown else None
    with click.Context(holdfast, obj=program) as root:
        return _parsed(holdfast, "holdfast", arguments, root)


def _parsed(command: click.Command, name: str, arguments: list[str], parent: click.Context) -> str | None:
    try:
        with command.make_context(name, arguments, parent=parent) as context:
            if not isinstance(command, click.Group):
                return None
            below, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            assert below is not None
            assert found is not None
            return _parsed(command_called(below, found), below, rest, context)
    except click.exceptions.Exit:
        return None  # it only helped
    except click.MissingParameter as error:
        # Prose may name a command without what it is about; an option that it cannot do without is another thing.
        return None if isinstance(error.param, click.Argument) else error.format_message()
    except click.UsageError as error:
        return error.format_message()


@pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if HISTORY not in page.parents]
)
def test_every_command_in_a_document_is_one_of_the_programs(page: Path) -> None:
    found = {command: problem for command in quoted_commands(page) if (problem := problem_of(command))}
    assert found == {}


def test_commands_are_found_and_wrong_ones_are_told() -> None:
    assert sum(len(list(quoted_commands(page))) for page in PAGES) > 200
    assert problem_of("kubectl holdfast status -n research -o json") is None
    assert "--no-such-flag" in str(problem_of("holdfast status --no-such-flag"))
    assert "nonsense" in str(problem_of("holdfast nonsense"))
    assert "'run'" in str(problem_of("kubectl holdfast run job.yaml"))
    assert problem_of("kubectl holdfast checkpoint gpt") is None
    assert "--rdzv-endpoint" in str(problem_of("holdfast launch train.py"))
    assert problem_of("holdfast evict") is None, "it is only named"
