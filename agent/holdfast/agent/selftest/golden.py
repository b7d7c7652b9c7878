"""The golden table: what devices known to be good answered, kept as JSON by likeness and check.

{"GH100 ...": {"product-bf16": "6f1c..."}}
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.agent.selftest.judgement import Golden
from holdfast.api.decoding import decode_json
from holdfast.api.errors import InvalidInput, Malformed, Problem, Unavailable
from holdfast.api.selftest import CheckResult, Verdict


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
