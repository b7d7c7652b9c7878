"""Which settings hold after a restore: those that the script asks for by now, or those that the checkpoint has.

Settings are those of an optimizer's groups, and of a scheduler, by name. A schedule moves a learning rate at each
step, and so do some scripts by hand; neither is a change of what is asked for. So what is compared is what the
script asks for before a step was made: now, and when what the checkpoint has began.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from fnmatch import fnmatchcase
from typing import Final

from holdfast.api.errors import InvalidInput, Problem

Values = dict[str, object]
"""Numbers, text, and lists of them, by the whole name: `optimizer.param_groups.0.lr`, `scheduler.T_max`."""

_GROUP: Final = re.compile(r"(?:optimizer\.)?(?P<owner>.*?)param_groups\.(?P<number>\d+)\.(?P<name>.+)")
_TEXT_MAX: Final = 80
# What a scheduler works out of its settings begins with an underscore, but for these. Source:
# torch/optim/lr_scheduler.py
_SHOWN: Final = {"_schedulers", "_milestones"}


class Side(StrEnum):
    """Whose value it is."""

    SCRIPT = "script"
    CHECKPOINT = "checkpoint"


class Absent(Enum):
    ABSENT = "none"


Wishes = str | Mapping[str, str]
"""The side that is to hold, for all settings or by name or pattern; where nothing is said, the checkpoint."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One, as both have it; ABSENT: the checkpoint has none."""

    script: object
    checkpoint: object
    holds: Side

    @property
    def differs(self) -> bool:
        return self.script != self.checkpoint

    @property
    def in_force(self) -> object:
        return self.script if self.holds is Side.SCRIPT else self.checkpoint

    def __str__(self) -> str:
        """Both values, and which holds."""
        other = "none" if self.checkpoint is Absent.ABSENT else text_of(self.checkpoint)
        if self.holds is Side.SCRIPT:
            return f"script {text_of(self.script)} holds, checkpoint {other}"
        return f"checkpoint {other} holds, script {text_of(self.script)}"


def settled(now: Values, then: Values, wishes: Wishes) -> dict[str, Setting]:
    """Each setting that the script has `now`, beside what was asked for `then`, with the side that holds. What a
    scheduler has worked out of its settings goes with them.
    """
    owners = {_owner(name) for name in then}
    found: dict[str, Setting] = {}
    for name, script in now.items():
        if _is_class(name):
            found[name] = Setting(script, then.get(name, script), Side.SCRIPT)
        elif name in then:
            # Who writes another optimizer asks for what it is made with.
            kind = class_of(_owner(name))
            other = Side.CHECKPOINT if then.get(kind) in (None, now.get(kind)) else Side.SCRIPT
            side = Side.CHECKPOINT if then[name] == script else _side(name, wishes, other)
            found[name] = Setting(script, then[name], side)
        else:
            # One that a group has more is named where it is kept, and so is a scheduler that is new as a whole.
            is_other_kind = _GROUP.fullmatch(name) is None and _owner(name) in owners
            found[name] = Setting(script, Absent.ABSENT if is_other_kind else script, Side.SCRIPT)
    taken = {
        _owner(name)
        for name, each in found.items()
        if each.differs and each.holds is Side.SCRIPT and _is_shown(name)
    }
    for name, each in found.items():
        if name in then and each.differs and not _is_shown(name):
            side = Side.SCRIPT if _owner(name) in taken else Side.CHECKPOINT
            found[name] = Setting(each.script, each.checkpoint, side)
    return found


def require_known(wishes: Wishes, names: Iterable[str]) -> None:
    """Raises InvalidInput for a side that is none, and for a name that none of the script's settings has."""
    each = {"": wishes} if isinstance(wishes, str) else dict(wishes)
    known = [name for name in names if not _is_class(name)]
    for name, side in each.items():
        field = f"settings[{name!r}]" if name else "settings"
        if side not in list(Side):
            raise InvalidInput(Problem(field, side, f'write "{Side.SCRIPT}" or "{Side.CHECKPOINT}"'))
        if name and not any(_matches(one, name) for one in known):
            own = ", ".join(dict.fromkeys(one.rpartition(".")[2] for one in filter(_is_shown, known)))
            raise InvalidInput(Problem(field, name, f"write a setting that the script has: {own}"))


def shown(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """By the names that people know: of the optimizer alone `lr`, with the number of its group where groups are
    not alike in it.
    """
    found: dict[str, Setting] = {}
    grouped: dict[tuple[str, str], dict[str, Setting]] = {}
    for name, each in settings.items():
        if (group := _GROUP.fullmatch(name)) is not None:
            grouped.setdefault((group["owner"], group["name"]), {})[group["number"]] = each
        elif _is_shown(name) and (each.differs or not _is_class(name)):
            found[name] = each
    one_by_one: dict[str, Setting] = {}
    for (owner, name), groups in grouped.items():
        values = list(groups.values())
        if all(each == values[0] for each in values):
            one_by_one[f"{owner}{name}"] = values[0]
        else:
            one_by_one |= {f"{owner}param_groups.{number}.{name}": each for number, each in groups.items()}
    return one_by_one | found


def told(settings: Mapping[str, Setting]) -> dict[str, str]:
    """What is in force, for people; of what differs what does not hold as well."""
    found = {}
    for name, each in shown(settings).items():
        found[name] = text_of(each.in_force)
        if each.differs and each.holds is Side.CHECKPOINT:
            found[name] += f" (the checkpoint's, not the script's {text_of(each.script)})"
    return found


def text_of(value: object) -> str:
    """A value of a setting, in as few digits as tell it, and cut where it is long."""
    text = f"[{', '.join(map(text_of, value))}]" if isinstance(value, list) else _scalar_text(value)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."


def _scalar_text(value: object) -> str:
    """Six digits, where single precision has no more to say."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.6g}"
    return short if math.isclose(float(short), value, rel_tol=1e-6) else repr(value)


def class_of(owner: str) -> str:
    """The name under which it is said what an optimizer is. It is the script's, whatever is wished."""
    return f"{owner}.class"


def _is_class(name: str) -> bool:
    return name == class_of(_owner(name))


def _side(name: str, wishes: Wishes, other: Side) -> Side:
    """The checkpoint's, as is said of all where nothing is said, gives way to the `other` one."""
    if isinstance(wishes, str):
        return Side.SCRIPT if Side(wishes) is Side.SCRIPT else other
    return next((Side(side) for pattern, side in wishes.items() if _matches(name, pattern)), other)


def _matches(name: str, pattern: str) -> bool:
    """The name from any of its parts on, or one of all that begins so."""
    parts = name.split(".")
    ends = (".".join(parts[place:]) for place in range(len(parts)))
    return any(fnmatchcase(each, form) for each in ends for form in (pattern, f"{pattern}.*"))


def _owner(name: str) -> str:
    root, _, rest = name.partition(".")
    return f"{root}.{rest.partition('.')[0]}" if root == "extra" else root


def _is_shown(name: str) -> bool:
    return all(part in _SHOWN or not part.startswith("_") for part in name.split("."))
