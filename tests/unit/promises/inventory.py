"""Everything Holdfast promises, read from where it is promised: types, rules, commands, metrics, the README."""

import importlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast, get_args

import click
import yaml
from pydantic.alias_generators import to_camel

from holdfast.agent.metrics.table import AGENT_METRICS
from holdfast.agent.settings import _parser as agent_parser
from holdfast.api.condition import ConditionKind
from holdfast.api.interventionspec import InterventionSpec
from holdfast.api.section import Section
from holdfast.api.trainingjob import JobSpec
from holdfast.cli.embedded.faultscript import Deed
from holdfast.cli.main import COMMANDS, holdfast
from holdfast.operator.metrics import JobConditions, Metrics
from holdfast.watchdog.metrics.table import WATCHDOG_METRICS

ROOT = Path(__file__).parents[3]
# Long-running parts read their own flags; the agent does without click.
SERVICES = {"watchdog": "holdfast.watchdog.program:command", "operator": "holdfast.operator.program:command"}
RULES = ROOT / "helm" / "holdfast" / "rules"


def spec_fields(section: type[Section] = JobSpec, path: str = "") -> Iterator[str]:
    """The fields of a TrainingJob's spec that hold no fields themselves, as a file spells them."""
    for name, field in section.model_fields.items():
        place = path + to_camel(name)
        kinds = [each for each in (field.annotation, *get_args(field.annotation)) if isinstance(each, type)]
        below = next((each for each in kinds if issubclass(each, Section)), None)
        if below is None:
            yield place
        else:
            yield from spec_fields(below, f"{place}.")


def intervention_fields() -> Iterator[str]:
    yield from spec_fields(InterventionSpec)


def deeds() -> Iterator[str]:
    """The verbs of the fault script."""
    yield from (deed.value for deed in Deed)


def alerts() -> Iterator[str]:
    for file in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            yield from (rule["alert"] for rule in group["rules"] if "alert" in rule)


def conditions() -> Iterator[str]:
    """Of nodes, GPUs and links as agents report them, and of a TrainingJob as `kubectl describe` shows them."""
    yield from (kind.value for kind in ConditionKind)
    written = (ROOT / "operator/holdfast/operator/decide/conditions.py").read_text()
    told = re.findall(
        r'^        (?:tells\[)?"(\w+)"(?:\] =|: (?:_\w+\(ctx\)|ADMITTED|Said))', written, re.MULTILINE
    )
    yield from (f"TrainingJob {kind}" for kind in dict.fromkeys(told))


def metrics() -> Iterator[str]:
    yield from dict.fromkeys(each.name for each in (*WATCHDOG_METRICS, *AGENT_METRICS))
    operator = Metrics()
    operator.add(JobConditions(lambda: ()))
    yield from re.findall(r"^# TYPE (\S+)", operator.text().decode(), re.MULTILINE)


def commands() -> Iterator[str]:
    """Every command and every argument and flag of one. A flag that many commands have, and that means the same in
    all of them, is one promise (`--context`); another is one of its command (`run --nodes`).
    """
    flags: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, flag, says in _commands_and_flags():
        if flag is None:
            yield path
        else:
            flags[flag, says].append(path)
    for (flag, _), paths in flags.items():
        most = max(len(other) for (name, _), other in flags.items() if name == flag)
        yield flag if len(paths) == most > 1 else f"{paths[0]} {flag}"


def _commands_and_flags() -> Iterator[tuple[str, str | None, str]]:
    """Each command's path, then each of its arguments, and of its flags with what its help says."""
    for path, command in _every_command():
        yield path, None, ""
        for option in command.params:
            if isinstance(option, click.Option):
                yield path, max(option.opts, key=len), option.help or ""
            elif path not in SERVICES and path != "agent":
                yield path, option.human_readable_name, ""
    for action in agent_parser()._actions:
        if action.option_strings and action.dest != "help":
            yield "agent", action.option_strings[-1], action.help or ""


def _every_command() -> Iterator[tuple[str, click.Command]]:
    yield "holdfast", click.Command("holdfast", params=holdfast.params)
    for name, where in COMMANDS.items():
        module, _, attribute = where.target.partition(":")
        yield from _below(name, command_called(name, getattr(importlib.import_module(module), attribute)))


def command_called(name: str, found: click.Command) -> click.Command:
    """The command that reads the flags: of a long-running part its own."""
    module, _, attribute = SERVICES.get(name, "").partition(":")
    return cast(click.Command, getattr(importlib.import_module(module), attribute)) if module else found


def _below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from _below(f"{path} {name}", found)


def sentences() -> Iterator[str]:
    """Of the README: each sentence, table row and line of a console block, with its white space made even."""
    text = (ROOT / "README.md").read_text()
    for block in re.split(r"\n\s*\n", re.sub(r"```(\w+)\n(.*?)```", _lines_apart, text, flags=re.DOTALL)):
        even = " ".join(block.split())
        if not even or even.startswith("#"):
            continue
        if even.startswith("|"):
            yield from (" ".join(row.split()) for row in block.splitlines() if not re.match(r"^\|[-| ]+\|$", row))
        else:
            yield from re.split(r"(?<=[.:])\s+(?=[A-Z`\[])", even)


def _lines_apart(block: re.Match[str]) -> str:
    return "\n\n" + "\n\n".join(block[2].splitlines()) + "\n\n" if block[1] == "console" else "\n\n"


PROMISES: Mapping[str, Any] = {
    "spec": spec_fields,
    "interventions": intervention_fields,
    "deeds": deeds,
    "alerts": alerts,
    "conditions": conditions,
    "metrics": metrics,
    "commands": commands,
    "readme": sentences,
}
