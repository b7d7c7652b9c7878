"""What is not the same in two rounds: code, configuration, data, image, packages, environment, world, history."""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.api.runmanifest import IMAGE, Code, RunManifest, Section
from holdfast.cli.rounds.chronicle import RoundTold

ABSENT: Final = "-"
_DATA: Final = frozenset(
    {"data", "dataset", "datasets", "shard", "shards", "tokenizer", "corpus", "mixture", "batch"}
)
"""Words in the names of settings that a script tells (`run.configure`) of its data."""


class About(StrEnum):
    """What a change is about. The order is the order in which changes are shown."""

    CODE = "code"
    CONFIGURATION = "configuration"
    DATA = "data"
    IMAGE = "image"
    PACKAGES = "packages"
    ENVIRONMENT = "environment"
    WORLD = "world"
    HISTORY = "history"


class Change(msgspec.Struct, frozen=True):
    """One thing that is not the same. `before` and `after` are in words."""

    about: About
    name: str
    before: str
    after: str

    @property
    def says(self) -> str:
        return f"{self.name} {self.before} -> {self.after}"


_OF_SECTION: Final[Mapping[Section, About]] = MappingProxyType(
    {
        Section.CONFIGURATION: About.CONFIGURATION,
        Section.SEEDS: About.CONFIGURATION,
        Section.DETERMINISM: About.CONFIGURATION,
        Section.TOPOLOGY: About.WORLD,
        Section.ENVIRONMENT: About.ENVIRONMENT,
        Section.VERSIONS: About.PACKAGES,
        Section.PACKAGES: About.PACKAGES,
    }
)


def changes(before: RoundTold, after: RoundTold) -> tuple[Change, ...]:
    """What changed from one round to the other, by what it is about. Of rounds that nobody told of the world and
    the history alone.
    """
    found: list[Change] = []
    if before.manifest is not None and after.manifest is not None:
        found += _of_manifests(before.manifest, after.manifest)
    is_told = any(each.name == "world_size" for each in found)
    if not is_told and before.world != after.world and None not in (before.world, after.world):
        found.append(Change(About.WORLD, "ranks", str(before.world), str(after.world)))
    if before.last is not None and after.went_on_from is not None and after.went_on_from < before.last:
        found.append(Change(About.HISTORY, "step", str(before.last), str(after.went_on_from)))
    order = list(About)
    return tuple(sorted(found, key=lambda each: (order.index(each.about), each.name)))


def _of_manifests(before: RunManifest, after: RunManifest) -> Iterator[Change]:
    yield from _of_code(before.code, after.code)
    if before.command != after.command:
        yield Change(About.CONFIGURATION, "command", " ".join(before.command), " ".join(after.command))
    for section in Section:
        ours, theirs = before.of(section), after.of(section)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                about = _about(section, name)
                yield Change(about, name, ours.get(name, ABSENT), theirs.get(name, ABSENT))


def _about(section: Section, name: str) -> About:
    if section is Section.VERSIONS and name == IMAGE:
        return About.IMAGE
    words = set(re.split(r"[^a-z]+", name.lower()))
    return About.DATA if section is Section.CONFIGURATION and words & _DATA else _OF_SECTION[section]


def _of_code(before: Code, after: Code) -> Iterator[Change]:
    if before.commit != after.commit:
        yield Change(About.CODE, "commit", before.commit[:12] or ABSENT, after.commit[:12] or ABSENT)
    ours, theirs = edits(before.diff), edits(after.diff)
    names = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    for name in sorted(names):
        yield Change(About.CODE, f"uncommitted {name}", _size(ours.get(name)), _size(theirs.get(name)))
    for name in sorted(before.files.keys() | after.files.keys()):
        one, other = before.files.get(name, ABSENT), after.files.get(name, ABSENT)
        # What a diff tells of in words needs no hash beside it.
        if one != other and not any(told == name or told.endswith(f"/{name}") for told in names):
            yield Change(About.CODE, name, one[:12], other[:12])


def edits(diff: str) -> Mapping[str, tuple[str, ...]]:
    """The changed lines of a diff, as `git diff` writes it, by file."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in diff.splitlines():
        if line.startswith("diff --git "):
            lines = found.setdefault(line.rpartition(" b/")[2], [])
        elif line[:1] in ("+", "-") and not line.startswith(("+++ ", "--- ")):
            lines.append(line)
        elif line.startswith(("Binary files", "GIT binary patch", "index ")):
            lines.append(f" {line}")
    return {name: tuple(each) for name, each in found.items()}


def _size(lines: tuple[str, ...] | None) -> str:
    if lines is None:
        return "as committed"
    return f"+{sum(each[0] == '+' for each in lines)} -{sum(each[0] == '-' for each in lines)} lines"
