"""`python -m holdfast.agent.selftest`: the self-test as a command. The environment is read here and nowhere else.

Exit codes: 0 passed, 1 failed, 2 wrong usage, 3 Unknown.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, NoReturn

import click
import msgspec

from holdfast.agent.selftest.fitting import fitted
from holdfast.agent.selftest.injection import Drill, parse_injection, read_drill
from holdfast.api.errors import HoldfastError, InvalidInput
from holdfast.api.selftest import Tested, TestLevel, Verdict

USAGE: Final = 2
EXIT_CODES: Final[Mapping[Verdict, int]] = {Verdict.PASSED: 0, Verdict.FAILED: 1, Verdict.UNKNOWN: 3}
_UNAVAILABLE: Final = 3


class Flags(msgspec.Struct, frozen=True):
    """The command's flags as they were given."""

    level: TestLevel
    device: str
    tensor: Annotated[int, msgspec.Meta(ge=1)]
    seed: int
    number: int
    inject: tuple[str, ...]
    as_json: bool
    golden: str | None = None
    record: str | None = None
    repeat: int | None = None
    drill: str | None = None
    result: str | None = None
    check_timeout: float | None = None


@click.command()
@click.option("--level", type=click.Choice([each.value for each in TestLevel]), default="light", show_default=True)
@click.option("--device", type=click.Choice(["cpu", "cuda", "auto"]), default="auto", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Write everything as JSON.")
@click.option("--tensor", type=click.IntRange(min=1), default=1, help="Ranks that must share one NVLink domain.")
@click.option("--golden", metavar="FILE", help="Compare with this table of results known to be good.")
@click.option("--record", metavar="FILE", help="Add what passed to this table.")
@click.option("--repeat", type=click.IntRange(min=1), help="Runs of each check. Default: what the level promises.")
@click.option("--seed", type=click.IntRange(min=0, max=2**31), default=0, help="Other inputs.")
@click.option(
    "--inject", multiple=True, metavar="FAULT", help="For drills: flip:probability=P:seed=N, stuck, hang."
)
@click.option("--drill", metavar="FILE", help="For drills: faults and devices from a file.")
@click.option("--check-timeout", type=click.FloatRange(min=0.1), help="Seconds a check may take.")
@click.option("--number", type=int, default=0, help="The request that this answers.")
@click.option("--result", metavar="FILE", help="Also write the answer to the watchdog here.")
def selftest(**given: object) -> None:
    """Test this node's devices: exact arithmetic, memory, bandwidth, collectives."""
    flags = msgspec.convert(given, Flags)
    try:
        tested = _run(flags)
    except HoldfastError as error:
        _end(USAGE if isinstance(error, InvalidInput) else _UNAVAILABLE, str(error))
    except OSError as error:
        _end(_UNAVAILABLE, str(error))  # exit code 1 would say that a device failed
    click.echo(_json(tested) if flags.as_json else as_text(tested))
    sys.exit(EXIT_CODES[tested.verdict])


def _end(status: int, reason: str) -> NoReturn:
    click.echo(f"holdfast selftest: {reason}", err=True)
    sys.exit(status)


def _run(flags: Flags) -> Tested:
    drill = read_drill(Path(flags.drill)) if flags.drill else Drill()
    injections = tuple(parse_injection(text) for text in (*flags.inject, *drill.inject))
    # Numeric libraries start their threads when they are imported, and a process with threads must not fork.
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    try:
        from holdfast.agent.selftest.device import DeviceKind, devices_of
        from holdfast.agent.selftest.golden import read_golden, record_golden
        from holdfast.agent.selftest.selftest import Order, run, settle_environment
    except ModuleNotFoundError as error:
        _end(_UNAVAILABLE, f"{error.name} is not installed here; install it with pip install 'holdfast[torch]'")
    settle_environment()
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
        _write(Path(flags.result), msgspec.msgpack.encode(fitted(tested)))
    return tested


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: whoever reads it may look at any time."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def _json(tested: Tested) -> str:
    return msgspec.json.format(msgspec.json.encode(tested), indent=2).decode()


def as_text(tested: Tested) -> str:
    """One line per check, and the whole in a sentence."""
    width = max((len(each.check) for each in tested.checks), default=0)
    lines = [
        f"{each.verdict:<7}  {each.check.ljust(width)}  {each.device}  {each.says}".rstrip()
        for each in tested.checks
    ]
    return "\n".join([*lines, f"{tested.verdict} in {tested.took_s:.1f} s: {tested.says}"])
