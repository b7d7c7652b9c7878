"""What digests mean, and how often a check must be repeated. Pure but for the file of the golden table.

A device is compared with itself (every run of a check must give the same digest), with the golden table, and with
the other devices of this node that must answer alike. The comparison across nodes is the watchdog's.

A faulty device computes wrongly now and then, so one pass proves nothing. A fault that strikes each run on its own
with probability p is seen in K runs with P = 1 - (1 - p)^K, because one digest that differs from the others is
enough. The light level catches a device that computes wrongly one time in fifty: 1 - (49/50)^149 = 95.1 %.
Source for one in fifty: a GPU that diverged in 1 of 50 runs, "Safeguarding LLM Training at Scale", OSDI '26.
"""

import math
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.api.decoding import decode_json
from holdfast.api.errors import InvalidInput, Malformed, Problem, Unavailable
from holdfast.api.selftest import TOPOLOGY, CheckResult, TestLevel, Verdict

CONFIDENCE: Final = 0.95
CAUGHT_ONE_IN: Final[Mapping[TestLevel, int]] = {TestLevel.LIGHT: 50, TestLevel.FULL: 500}
"""The rarest fault each level is made for: wrong in one run of so many."""
Golden = Mapping[str, Mapping[str, str]]
"""What devices known to be good answered, by likeness and check: {"GH100 ...": {"product-bf16": "6f1c..."}}."""
NVLINK_DOMAINS: Final = "nvlink-domains"
"""Asking the driver which GPUs share a domain. It has a result of its own only when the driver does not answer."""
INEXACT: Final = frozenset({"bandwidth-host", "bandwidth-device", "bandwidth-peer", NVLINK_DOMAINS, TOPOLOGY})
"""Checks that prove nothing about arithmetic: when one is Unknown, the whole may still pass."""


def chance_to_catch(probability: float, repeats: int) -> float:
    """The chance that at least one of `repeats` runs is wrong when each is with `probability`."""
    return 1.0 - (1.0 - probability) ** repeats


def repeats_to_catch(probability: float, confidence: float = CONFIDENCE) -> int:
    """The fewest repeats that catch a fault of `probability` per run with `confidence`. Both between 0 and 1."""
    return math.ceil(math.log1p(-confidence) / math.log1p(-probability))


def repeats_of(level: TestLevel) -> int:
    """How often each check of `level` runs."""
    return repeats_to_catch(1.0 / CAUGHT_ONE_IN[level])


def promise(level: TestLevel, repeats: int) -> str:
    """What `repeats` runs are good for, in words."""
    one_in = CAUGHT_ONE_IN[level]
    chance = chance_to_catch(1.0 / one_in, repeats)
    return f"a device that computes wrongly one time in {one_in} is seen with {chance:.1%}"


def judge_runs(blank: CheckResult, digests: Sequence[str], promise: str) -> CheckResult:
    """The result of a check's runs: `blank` names check, device and likeness, `digests` is one per run.

    The digest kept is the one most runs gave. `promise` says what so many runs are good for.
    """
    if not digests:
        return replace(blank, verdict=Verdict.UNKNOWN, says="it never ran")
    (usual, times), *_ = Counter(digests).most_common(1)
    if times == len(digests):
        says = f"{len(digests)} runs alike; {promise}"
        return replace(blank, verdict=Verdict.PASSED, says=says, digest=usual)
    first = next(run for run, digest in enumerate(digests, start=1) if digest != usual)
    says = f"{len(digests) - times} of {len(digests)} runs gave another result, first run {first}"
    return replace(blank, verdict=Verdict.FAILED, says=says, digest=usual)


def compare_with_golden(results: Sequence[CheckResult], golden: Golden) -> tuple[CheckResult, ...]:
    """Fail what differs from the table. What it does not know stays as it is, and that is said."""
    compared = []
    for each in results:
        known = golden.get(each.like, {}).get(each.check)
        if not _is_comparable(each):
            compared.append(each)
        elif known is None or known == each.digest:
            says = "the golden table does not know it" if known is None else "equal to the golden result"
            compared.append(replace(each, says=f"{each.says}; {says}"))
        else:
            says = f"every run gave {each.digest}, the golden result for {each.like} is {known}"
            compared.append(replace(each, verdict=Verdict.FAILED, says=says))
    return tuple(compared)


def compare_devices(results: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    """Compare the devices that must answer alike: a minority fails; without a majority all of them are Unknown."""
    groups: dict[tuple[str, str], list[CheckResult]] = defaultdict(list)
    for each in results:
        if _is_comparable(each):
            groups[each.check, each.like].append(each)
    changed = {}
    for group in groups.values():
        usual, times = Counter(each.digest for each in group).most_common(1)[0]
        if 2 * times > len(group):
            verdict, strange = Verdict.FAILED, [each for each in group if each.digest != usual]
            says = f"every run differs from {times} of {len(group)} devices of this node that must answer alike"
        else:
            verdict, strange = Verdict.UNKNOWN, group
            names = ", ".join(each.device for each in group)
            says = f"{names} must answer alike and do not: one of them computes wrong, and no majority says which"
        for each in strange:
            changed[each.check, each.device] = replace(each, verdict=verdict, says=says)
    return tuple(changed.get((each.check, each.device), each) for each in results)


def _is_comparable(result: CheckResult) -> bool:
    return result.verdict is Verdict.PASSED and bool(result.digest)


def verdict_of(results: Sequence[CheckResult]) -> Verdict:
    """Failed when anything failed; Passed when every exact check passed, and there was one; else Unknown."""
    if any(each.verdict is Verdict.FAILED for each in results):
        return Verdict.FAILED
    exact = [each for each in results if each.check not in INEXACT]
    if not exact or any(each.verdict is Verdict.UNKNOWN for each in exact):
        return Verdict.UNKNOWN
    return Verdict.PASSED


def summary(results: Sequence[CheckResult], promise: str) -> str:
    """The whole in a sentence: what failed, else what could not be told, else what was proved."""
    failed = [each for each in results if each.verdict is Verdict.FAILED]
    unknown = [each for each in results if each.verdict is Verdict.UNKNOWN and each.check not in INEXACT]
    for found in (failed, unknown):
        if found:
            more = f"; {len(found) - 1} more" if len(found) > 1 else ""
            return f"{found[0].check} of {found[0].device}: {found[0].says}{more}"
    passed = [each for each in results if each.verdict is Verdict.PASSED]
    devices = len({each.device for each in passed if each.device != "node"})
    return f"{len(passed)} checks passed on {devices} device{'s' if devices != 1 else ''}; {promise}"


def read_golden(path: Path) -> Golden:
    """Raises InvalidInput when the file is no golden table, Unavailable when it cannot be read."""
    try:
        return decode_json(path.read_bytes(), dict[str, dict[str, str]])
    except Malformed as error:
        raise InvalidInput(Problem("golden", str(path), f"it is no golden table: {error}")) from error
    except OSError as error:
        raise Unavailable(f"the golden table {path} cannot be read: {error.strerror}") from error


def with_results(golden: Golden, results: Sequence[CheckResult]) -> Golden:
    """The table with what passed added; a newer result takes the place of an older one. Pure."""
    table = {like: dict(checks) for like, checks in golden.items()}
    for each in results:
        if each.verdict is Verdict.PASSED and each.digest:
            table.setdefault(each.like, {})[each.check] = each.digest
    return table


def record_golden(path: Path, results: Sequence[CheckResult]) -> None:
    """Add what passed to the table at `path`, which need not exist. Raises as `read_golden`, and Unavailable."""
    table = with_results(read_golden(path) if path.exists() else {}, results)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(table, order="sorted"), indent=2) + b"\n")
        os.replace(fresh, path)
    except OSError as error:
        raise Unavailable(f"the golden table {path} cannot be written: {error.strerror}") from error
