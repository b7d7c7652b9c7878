"""Tables of what fails and how often: published ones by name, and those that a user wrote in the same form.

A table is YAML. Its kinds have `rate` (for 1,000 node-days), or `count`, which `node_days` divides or the table's
own `rate` is shared out by:

says: what it is
source: https://where.it/is/from
node_days: 110592
kinds:
  - {name: faulty GPU, count: 148, symptom: GpuLost}

`shares_of` names a preset whose kinds share the table's rate in place of `kinds`. What `holdfast fleet -o json`
writes is a table as well.
"""

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, Final

import msgspec
import yaml

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.finding import FindingKind
from holdfast.api.fleet import FleetReport
from holdfast.api.plainvalues import read_plain
from holdfast.api.xid import FELL_OFF_THE_BUS
from holdfast.simulator.fault import Fault, FaultRate, Spread, Symptom

PRESETS: Final = "presets"
RATE_MAX: Final = 1e6
"""For 1,000 node-days: every node more than forty times an hour."""
SECONDS_MAX: Final = 10 * 365 * 86_400.0
SIGMA_MAX: Final = 5.0
FACTOR_MAX: Final = 1000.0
SIGNAL_MAX: Final = 64
DAYS_OF_1000_HOURS: Final = 24.0
OF_FINDINGS: Final[Mapping[FindingKind, Symptom]] = {
    FindingKind.PROCESS_EXIT: Symptom.PROCESS_EXIT,
    FindingKind.COLLECTIVE_FAILED: Symptom.LINK_FLAP,
    FindingKind.MEMBER_LOST: Symptom.NODE_LOST,
    FindingKind.HANG: Symptom.HANG,
    FindingKind.XID: Symptom.XID,
    FindingKind.GPU_LOST: Symptom.GPU_LOST,
    FindingKind.CONDITION: Symptom.NODE_NOT_READY,
    FindingKind.THERMAL: Symptom.HOT,
    FindingKind.SELF_TEST: Symptom.CORRUPTION,
    FindingKind.CORRUPTION: Symptom.CORRUPTION,
    FindingKind.NON_FINITE: Symptom.NAN,
    FindingKind.STRAGGLER: Symptom.SLOW,
    FindingKind.USER_CODE: Symptom.PROCESS_EXIT,
}
"""What a fault looked like before a detector gave it this name. Other kinds do not come by chance."""
OF_NOBODY: Final = frozenset({FindingKind.COLLECTIVE_FAILED, FindingKind.PROCESS_EXIT, FindingKind.USER_CODE})
"""What no eviction mends, as far as the finding alone says."""


class Kind(Fault, frozen=True, kw_only=True):
    """A row: a fault with its `rate`, or its `count`."""

    rate: float | None = None
    count: float | None = None


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as it is written; `rate` is of all its kinds together."""

    says: str = ""
    source: str = ""
    node_days: float | None = None
    rate: float | None = None
    shares_of: str = ""
    kinds: tuple[Kind, ...] = ()


def preset_names() -> tuple[str, ...]:
    """All there are, in order."""
    folder = resources.files(__package__) / PRESETS
    return tuple(
        sorted(each.name.removesuffix(".yaml") for each in folder.iterdir() if each.name.endswith(".yaml"))
    )


def preset(name: str, field: str = "preset") -> Table:
    """A published table. Raises InvalidInput naming `field` when there is none of that name."""
    if name not in preset_names():
        fix = f"give one of {', '.join(preset_names())}, or a file with a table"
        raise InvalidInput(Problem(field, name, fix))
    text = (resources.files(__package__) / PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
    return table_of(yaml.safe_load(text), name)


def table_of(given: Any, field: str) -> Table:
    """A decoded document as a table. Raises InvalidInput naming `field` and what in it is wrong."""
    return read_plain(given, Table, field)


def rates_of(table: Table, field: str) -> tuple[FaultRate, ...]:
    """Every kind with its rate for 1,000 node-days. Raises InvalidInput."""
    kinds = table.kinds
    if table.shares_of:
        if kinds:
            raise InvalidInput(Problem(f"{field}.shares_of", table.shares_of, "give it or kinds, not both"))
        kinds = preset(table.shares_of, f"{field}.shares_of").kinds
    if not kinds:
        raise InvalidInput(Problem(f"{field}.kinds", [], "give at least one kind"))
    total = sum(each.count or 0.0 for each in kinds)
    rates = [
        _rated(each, _rate(each, table, total, f"{field}.kinds[{place}]"), table.source)
        for place, each in enumerate(kinds)
    ]
    return checked(rates, f"{field}.kinds")


def _rated(kind: Kind, rate: float, source: str) -> FaultRate:
    """The fault of the row; what it is from is the table's, unless it says another place."""
    told = {name: getattr(kind, name) for name in Fault.__struct_fields__}
    return FaultRate(**{**told, "source": kind.source or source}, rate=rate)


def _rate(kind: Kind, table: Table, total: float, field: str) -> float:
    """Of one row."""
    if (kind.rate is None) == (kind.count is None):
        raise InvalidInput(Problem(field, kind.name, "give either rate or count"))
    if kind.rate is not None:
        return kind.rate
    count = kind.count or 0.0
    if (table.node_days is None) == (table.rate is None):
        raise InvalidInput(Problem(field, kind.name, "a count needs either node_days or rate beside kinds"))
    if table.node_days is not None:
        if not 0 < table.node_days < float("inf"):
            raise InvalidInput(Problem(field, table.node_days, "give node_days greater than 0"))
        return count / table.node_days * 1000.0
    return (table.rate or 0.0) * count / total if total else 0.0


def checked(rates: Iterable[FaultRate], field: str) -> tuple[FaultRate, ...]:
    """The same, when every number of them can be lived through. Raises InvalidInput naming all that cannot."""
    kept = tuple(rates)
    wrong = []
    for place, each in enumerate(kept):
        at = f"{field}[{place}]"
        if not each.name:
            wrong.append(Problem(f"{at}.name", each.name, "give the kind a name"))
        if not 0 <= each.rate <= RATE_MAX:
            wrong.append(Problem(f"{at}.rate", each.rate, f"give 0 to {RATE_MAX:g} for 1,000 node-days"))
        if not 0 <= each.infrastructure <= 1:
            wrong.append(Problem(f"{at}.infrastructure", each.infrastructure, "give a share from 0 to 1"))
        if (each.code is None) == (each.symptom is Symptom.XID) and each.symptom is not Symptom.PROCESS_EXIT:
            fix = "give the driver's code of an Xid, the signal of a ProcessExit, and of nothing else"
            wrong.append(Problem(f"{at}.code", each.code, fix))
        is_signal = each.symptom is Symptom.PROCESS_EXIT and each.code is not None
        if is_signal and each.code not in range(1, SIGNAL_MAX + 1):
            wrong.append(Problem(f"{at}.code", each.code, f"give a signal, from 1 to {SIGNAL_MAX}"))
        if not 1 <= each.factor <= FACTOR_MAX:
            wrong.append(Problem(f"{at}.factor", each.factor, f"give from 1 to {FACTOR_MAX:g} times"))
        for name, spread in (("repair", each.repair), ("lasts", each.lasts), ("again", each.again)):
            wrong += list(odd_spread(f"{at}.{name}", spread))
    names = [each.name for each in kept]
    wrong += [
        Problem(f"{field}[{place}].name", name, "another kind has this name; name each once")
        for place, name in enumerate(names)
        if name in names[:place]
    ]
    if wrong:
        raise InvalidInput(*wrong)
    return kept


def odd_spread(field: str, spread: Spread | None) -> Iterable[Problem]:
    """What is wrong with a time that is drawn; None: nothing is."""
    if spread is None:
        return
    if not 0 < spread.median_s <= SECONDS_MAX:
        yield Problem(
            f"{field}.median_s", spread.median_s, f"give seconds greater than 0, at most {SECONDS_MAX:g}"
        )
    if not 0 <= spread.sigma <= SIGMA_MAX:
        yield Problem(f"{field}.sigma", spread.sigma, f"give 0 to {SIGMA_MAX:g}")


def rates_of_fleet(report: FleetReport, gpus_per_node: int, field: str) -> tuple[FaultRate, ...]:
    """A fleet's own rates by kind, as `holdfast fleet` knows them. Raises InvalidInput where it knows of none.

    A rate for 1,000 GPU-hours becomes one for 1,000 node-days by the hours of a day and the GPUs of a node.
    """
    rates = []
    for row in report.tables.get("kind", ()):
        kind = next((each for each in FindingKind if each.value == row.group), None)
        if kind is None or kind not in OF_FINDINGS or row.per_1000_gpu_hours is None:
            continue
        symptom = OF_FINDINGS[kind]
        rates.append(
            FaultRate(
                name=row.group,
                symptom=symptom,
                rate=row.per_1000_gpu_hours * DAYS_OF_1000_HOURS * gpus_per_node,
                infrastructure=0.0 if kind in OF_NOBODY else 1.0,
                code=FELL_OFF_THE_BUS if symptom is Symptom.XID else None,
                source=field,
            )
        )
    if not rates:
        fix = "the fleet has had no failure of a known kind yet; give a preset, such as llama3"
        raise InvalidInput(Problem(field, "tables.kind", fix))
    return checked(rates, field)
