"""What people are shown of rounds: pure functions from what is known to text."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.cli.incidentview import in_one_line
from holdfast.cli.output import UNKNOWN, instant, number, table
from holdfast.cli.rounds.comparison import Compared
from holdfast.cli.rounds.effect import Effect, Turn

HEADERS = ("ROUND", "BEGAN", "RANKS", "STEPS", "CHANGED", "WHAT IT DID")
CHANGES_SHOWN = 8
VALUE_WIDTH = 60


def rounds_text(rounds: Sequence[Compared]) -> str:
    """One line per round, and below what changed with each."""
    if not rounds:
        return "no round was entered, or the journal begins behind it"
    return "\n\n".join([table(HEADERS, [_row(each) for each in rounds]), *_details(rounds, CHANGES_SHOWN)])


def rounds_wide_text(rounds: Sequence[Compared]) -> str:
    """The same with every change."""
    if not rounds:
        return rounds_text(rounds)
    return "\n\n".join([table(HEADERS, [_row(each) for each in rounds]), *_details(rounds, None)])


def round_shown(told: Compared) -> dict[str, Any]:
    """A round for `-o json` and `-o yaml`. `isTold`: somebody told how it was started."""
    of = told.round
    return {
        "round": of.number,
        "began": of.began,
        "ended": of.ended,
        "ranks": of.world,
        "firstStep": of.first,
        "lastStep": of.last,
        "wentOnFrom": of.went_on_from,
        "isTold": of.manifest is not None,
        "changes": [{**msgspec.to_builtins(each), "about": each.about.value} for each in told.changes],
        "effects": [msgspec.to_builtins(each) for each in told.effects],
    }


def effect_text(effect: Effect) -> str:
    """`loss worse (2.1 to 2.9, usual +-0.1)`."""
    return (
        f"{effect.figure} {effect.turn.value}"
        f" ({number(effect.before)} to {number(effect.after)}, usual +-{number(effect.noise)})"
    )


def _row(told: Compared) -> tuple[str, ...]:
    of = told.round
    steps = UNKNOWN if of.first is None else f"{of.first}-{number(of.last)}"
    about = ", ".join(dict.fromkeys(each.about.value for each in told.changes))
    return (
        str(of.number),
        instant(of.began),
        number(of.world),
        steps,
        about or _unchanged(told),
        _did(told.effects),
    )


def _unchanged(told: Compared) -> str:
    return "none known" if told.round.manifest is not None else UNKNOWN


def _did(effects: Sequence[Effect]) -> str:
    moved = [effect_text(each) for each in effects if each.turn in (Turn.BETTER, Turn.WORSE)]
    steady = [each.figure for each in effects if each.turn is Turn.SAME]
    parts = [*moved, *([f"{', '.join(steady)} as before"] if steady else [])]
    return "; ".join(parts) or UNKNOWN


def _details(rounds: Sequence[Compared], most: int | None) -> Sequence[str]:
    found = []
    for each in rounds:
        shown = each.changes[:most]
        lines = [
            f"  {change.about.value:13}  {in_one_line(change.name, VALUE_WIDTH)}:"
            f" {in_one_line(change.before, VALUE_WIDTH)} -> {in_one_line(change.after, VALUE_WIDTH)}"
            for change in shown
        ]
        left = len(each.changes) - len(shown)
        lines += [f"  and {left} more: -o wide"] if left else []
        found += ["\n".join([f"round {each.round.number}", *lines])] if lines else []
    return found
