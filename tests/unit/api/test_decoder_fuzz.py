"""The fuzzer's first cases, from fixed seeds; `make fuzz` goes on from there for an hour. None is left out."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from decoder_fuzzer import TARGETS, fuzz
from parts import PARTS

REPOSITORY = Path(__file__).parents[3]
# Whose decoders are fed by nobody who could damage a message, and why; or fuzzed elsewhere.
ELSEWHERE = {
    "checkpoint/holdfast/checkpoint/capture": "ranks of one round to each other, over their own collectives",
    "checkpoint/holdfast/checkpoint/restore": "ranks of one round to each other, over their own collectives",
    "checkpoint/holdfast/checkpoint/save": "ranks of one round to each other, over their own collectives",
    "checkpoint/holdfast/checkpoint/format": "fuzzed with their hashes, in stored_bytes.py",
    "operator/holdfast/operator/decide": "objects that the API server has held against the CRD",
    "operator/holdfast/operator/act": "objects that the API server has held against the CRD",
    "operator/holdfast/operator/kube": "the API server's own lists",
    "cli/holdfast/cli/doctor": "the API server's own words",
    "console/holdfast/console/keeping.py": "its own file; one that cannot be read is begun anew",
    "console/holdfast/console/trackers/courier.py": "its own file; one that cannot be read is begun anew",
    "console/holdfast/console/trackers/credentials.py": "the API server's own words",
    "console/holdfast/console/trackers/desk.py": "its own file, behind a checksum; damaged, it is begun anew",
    "console/holdfast/console/trackers/publisher.py": "a line of the program that starts it",
    "console/holdfast/console/trackers/spool.py": "its own file, behind a checksum",
    "checkpoint/holdfast/checkpoint/fit.py": "an order of the command that starts the process",
    "agent/holdfast/agent/sensors/ranks.py": "what the agent has encoded itself a line before",
}

SLOW = ("job file", "grants", "carried plan", "written check")  # a tenth as many cases: these read YAML


def decoded_kinds(path: Path) -> Iterator[Any]:
    """The types that a module's decoders make, but for those it is handed as an argument."""
    source = path.read_text()
    if "decode" not in source and "Decoder" not in source:
        return
    module = importlib.import_module(".".join(path.relative_to(REPOSITORY).with_suffix("").parts[1:]))
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        function, kind = ast.unparse(call.func), None
        if function in ("decode_json", "decode_msgpack") and len(call.args) == 2:
            kind = call.args[1]
        elif function in ("msgspec.json.Decoder", "msgspec.msgpack.Decoder") and call.args:
            kind = call.args[0]
        elif function in ("msgspec.json.decode", "msgspec.msgpack.decode"):
            kind = next((each.value for each in call.keywords if each.arg == "type"), None)
        if kind is not None and not (isinstance(kind, ast.Name) and not hasattr(module, kind.id)):
            yield eval(ast.unparse(kind), vars(module))


def test_no_decoder_is_left_out() -> None:
    fuzzed = [target.kind for target in TARGETS.values() if target.kind is not None]
    missing = [
        f"{path.relative_to(REPOSITORY)}: {kind}"
        for part in PARTS
        for path in sorted((REPOSITORY / part).rglob("*.py"))
        if not path.relative_to(REPOSITORY).as_posix().startswith(tuple(ELSEWHERE))
        for kind in decoded_kinds(path)
        if kind not in fuzzed
    ]
    assert missing == [], "each needs a target in decoder_fuzzer.py, or a reason here"


def test_what_is_fuzzed_elsewhere_is_there() -> None:
    assert [each for each in ELSEWHERE if not (REPOSITORY / each).exists()] == []


def test_a_decoder_that_is_left_out_is_found() -> None:
    found = list(decoded_kinds(REPOSITORY / "watchdog/holdfast/watchdog/leadership.py"))
    assert [issubclass(each, msgspec.Struct) for each in found] == [True]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", TARGETS)
def test_a_damaged_message_is_another_message_or_the_documented_error(name: str, seed: int) -> None:
    refused = fuzz(name, seed, 60 if name in SLOW else 600)
    assert bool(refused) == bool(TARGETS[name].raises)
