"""`python -m holdfast.agent.selftest`: the self-test as a command. The environment is read here and nowhere else.

It runs on the user's Python beside the user's packages, so it needs no more of ours than a training script does.

Exit codes: 0 passed, 1 failed, 2 wrong usage, 3 Unknown.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, NoReturn

import msgspec

from holdfast.api.drill import Drill, parse_injection, read_drill
from holdfast.api.errors import HoldfastError, InvalidInput
from holdfast.api.selftest import CheckResult, Tested, TestLevel, Verdict

USAGE: Final = 2
EXIT_CODES: Final[Mapping[Verdict, int]] = {Verdict.PASSED: 0, Verdict.FAILED: 1, Verdict.UNKNOWN: 3}
_UNAVAILABLE: Final = 3
BYTES_MAX: Final = 32 << 10  # half of what a frame to the watchdog may weigh
SAYS_CHARACTERS_MAX: Final = 400
_KEPT_MAX: Final = 48  # results, should even those that did not pass be too many


class Flags(msgspec.Struct, frozen=True):
    """The command's flags as they were given."""

    level: TestLevel = TestLevel.LIGHT
    device: str = "auto"
    tensor: Annotated[int, msgspec.Meta(ge=1)] = 1
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 0
    number: int = 0
    inject: tuple[str, ...] = ()
    as_json: bool = False
    golden: str | None = None
    record: str | None = None
    repeat: Annotated[int, msgspec.Meta(ge=1)] | None = None
    drill: str | None = None
    result: str | None = None
    check_timeout: Annotated[float, msgspec.Meta(ge=0.1)] | None = None


def selftest(arguments: Sequence[str] | None = None) -> NoReturn:
    """Do what the command line asks for and end the process."""
    flags = _read(arguments)
    try:
        tested = _run(flags)
    except HoldfastError as error:
        _end(USAGE if isinstance(error, InvalidInput) else _UNAVAILABLE, str(error))
    except OSError as error:
        _end(_UNAVAILABLE, str(error))  # exit code 1 would say that a device failed
    as_json = msgspec.json.format(msgspec.json.encode(tested), indent=2).decode() if flags.as_json else None
    sys.stdout.write(f"{as_json or as_text(tested)}\n")
    sys.exit(EXIT_CODES[tested.verdict])


def _read(arguments: Sequence[str] | None) -> Flags:
    parser = argparse.ArgumentParser(
        prog="holdfast selftest",
        description="Test this node's devices: exact arithmetic, memory, bandwidth, collectives.",
        argument_default=argparse.SUPPRESS,  # The defaults are those of `Flags`.
        allow_abbrev=False,
    )
    parser.add_argument(
        "--level", choices=[each.value for each in TestLevel], help="How thorough: light, if nothing is said."
    )
    parser.add_argument(
        "--device", choices=["cpu", "cuda", "auto"], help="Which devices; auto: GPUs where there are any."
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="Write everything as JSON.")
    parser.add_argument("--tensor", metavar="N", type=int, help="Ranks that must share one NVLink domain.")
    parser.add_argument("--golden", metavar="FILE", help="Compare with this table of results known to be good.")
    parser.add_argument("--record", metavar="FILE", help="Add what passed to this table.")
    parser.add_argument(
        "--repeat", metavar="N", type=int, help="Runs of each check; else what the level promises."
    )
    parser.add_argument("--seed", metavar="N", type=int, help="Other inputs than those of seed 0.")
    parser.add_argument(
        "--inject", action="append", metavar="FAULT", help="For drills: flip:probability=P:seed=N, stuck, hang."
    )
    parser.add_argument("--drill", metavar="FILE", help="For drills: faults and devices from a file.")
    parser.add_argument("--check-timeout", metavar="S", type=float, help="Seconds a check may take.")
    parser.add_argument("--number", metavar="N", type=int, help="The request that this answers.")
    parser.add_argument("--result", metavar="FILE", help="Also write the answer to the watchdog here.")
    given = vars(parser.parse_args(arguments))
    try:
        return msgspec.convert(given, Flags)
    except msgspec.ValidationError as error:
        parser.error(str(error).replace("`$.", "`--").replace("_", "-"))


def _end(status: int, reason: str) -> NoReturn:
    sys.stderr.write(f"holdfast selftest: {reason}\n")
    sys.exit(status)


def _run(flags: Flags) -> Tested:
    drill = read_drill(Path(flags.drill)) if flags.drill else Drill()
    injections = tuple(parse_injection(text) for text in (*flags.inject, *drill.inject))
    # Numeric libraries start their threads when they are imported, and a process with threads must not fork.
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    # Deterministic once CUDA starts. Source: https://docs.nvidia.com/cuda/cublas/#results-reproducibility
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    try:
        import torch

        from holdfast.agent.selftest.device import DeviceKind, devices_of
        from holdfast.agent.selftest.judgement import read_golden, record_golden
        from holdfast.agent.selftest.selftest import Order, run
    except ModuleNotFoundError as error:
        _end(_UNAVAILABLE, f"{error.name} is not installed here; install it with pip install 'holdfast[torch]'")
    torch.set_num_threads(1)
    order = Order(
        level=flags.level,
        devices=devices_of(DeviceKind(flags.device), os.environ, drill.devices),
        number=flags.number,
        tensor=flags.tensor,
        repeats=flags.repeat,
        seed=flags.seed,
        injections=injections,
        golden=read_golden(Path(flags.golden)) if flags.golden else None,
        check_s=flags.check_timeout,
    )
    tested = run(order)
    if flags.record:
        record_golden(Path(flags.record), tested.checks)
    if flags.result:
        # Whole or not at all: whoever reads it may look at any time.
        fresh = f"{flags.result}.{os.getpid()}"
        Path(fresh).write_bytes(msgspec.msgpack.encode(fitted(tested)))
        os.replace(fresh, flags.result)
    return tested


def as_text(tested: Tested) -> str:
    """One line per check, and the whole in a sentence."""
    width = max((len(each.check) for each in tested.checks), default=0)
    lines = [
        f"{each.verdict:<7}  {each.check.ljust(width)}  {each.device}  {each.says}".rstrip()
        for each in tested.checks
    ]
    return "\n".join([*lines, f"{tested.verdict} in {tested.took_s:.1f} s: {tested.says}"])


# What is shortened first, then second, then last.
_SHORTER: Final[tuple[Callable[[CheckResult], CheckResult | None], ...]] = (
    lambda each: msgspec.structs.replace(each, says="") if each.verdict is Verdict.PASSED else each,
    lambda each: each if each.verdict is not Verdict.PASSED or each.digest else None,
    lambda each: each if each.verdict is not Verdict.PASSED else None,
)


def fitted(tested: Tested, bytes_max: int = BYTES_MAX) -> Tested:
    """`tested` in at most `bytes_max` bytes of msgpack, small enough for one message to the watchdog. Pure.

    What failed or is Unknown is always kept. Of what passed the words go first, then what nobody compares, then
    the rest, and the answer says how much is missing.
    """
    cut = (msgspec.structs.replace(each, says=each.says[:SAYS_CHARACTERS_MAX]) for each in tested.checks)
    tested = msgspec.structs.replace(tested, says=tested.says[:SAYS_CHARACTERS_MAX], checks=tuple(cut))
    whole = len(tested.checks)
    for shorten in _SHORTER:
        if _weight(tested) <= bytes_max:
            break
        kept = tuple(short for each in tested.checks if (short := shorten(each)) is not None)
        tested = msgspec.structs.replace(tested, checks=kept)
    if _weight(tested) > bytes_max:
        tested = msgspec.structs.replace(tested, checks=tested.checks[:_KEPT_MAX])
    if missing := whole - len(tested.checks):
        tested = msgspec.structs.replace(tested, says=f"{tested.says} ({missing} results left out)")
    return tested


def _weight(tested: Tested) -> int:
    return len(msgspec.msgpack.encode(tested))
