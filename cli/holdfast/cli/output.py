"""How a command answers: `-o table|wide|json|yaml|name`, the words and columns of a table, and the exit code."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, TypeVar

import click

from holdfast.api.errors import HoldfastError, InvalidInput, Unavailable

if TYPE_CHECKING:
    from holdfast.api.status import Reading

Value = TypeVar("Value")
UNKNOWN = "?"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but the tab and the end of a line


class ExitCode(IntEnum):
    """0 to 3, and 130 for Ctrl-C as shells have it. Scripts rely on them, so a code never changes its meaning."""

    OK = 0
    FAILED = 1  # the job failed, or the answer to the question is no
    INVALID = 2  # a flag or a file is wrong
    UNAVAILABLE = 3  # something needed is not there now: the watchdog, a port, space on the disk
    INTERRUPTED = 130


def exit_code_of(error: HoldfastError) -> ExitCode:
    """The exit code an error ends the program with."""
    if isinstance(error, InvalidInput):
        return ExitCode.INVALID
    return ExitCode.UNAVAILABLE if isinstance(error, Unavailable) else ExitCode.FAILED


class Format(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


format_option = click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice([each.value for each in Format]),
    default=Format.TABLE.value,
    show_default=True,
    callback=lambda _, __, value: Format(value),
    help="How to write the answer.",
)


def emit(
    form: Format,
    value: Value,
    *,
    table: Callable[[Value], str],
    wide: Callable[[Value], str] | None = None,
    names: Sequence[str],
) -> ExitCode:
    """Write one answer to stdout; a text is made only when it is asked for. Without `wide`, the table is it."""
    match form:
        case Format.JSON:
            import msgspec

            click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
        case Format.YAML:
            emit_yaml(value)
        case Format.NAME:
            for name in names:
                click.echo(name)
        case Format.WIDE if wide is not None:
            click.echo(plain(wide(value)))
        case _:
            click.echo(plain(table(value)))
    return ExitCode.OK


def plain(text: str) -> str:
    """Without what would command a terminal: causes, errors and stacks are what a job's processes wrote."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def emit_yaml(value: object) -> None:
    """Write `value` to stdout as YAML."""
    import msgspec
    import yaml

    click.echo(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True), nl=False)


def remark(sentence: str) -> None:
    """Say something beside the answer: to stderr."""
    click.echo(f"holdfast: {plain(sentence)}", err=True)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of columns two spaces apart, without a frame: good for reading and for awk. The last is not padded."""
    lines = [tuple(headers), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def pairs(entries: Sequence[tuple[str, str]]) -> str:
    """One `name  value` line each."""
    width = max(len(name) for name, _ in entries)
    return "\n".join(f"{name.ljust(width)}  {value}".rstrip() for name, value in entries)


def seconds(value: float | None) -> str:
    """A duration to three digits; Unknown is a question mark."""
    if value is None:
        return UNKNOWN
    if value < 0.9995:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 600 else f"{value / 60:.3g} min"


def ago(value: float | None) -> str:
    """How long ago something was; Unknown is a question mark alone."""
    return UNKNOWN if value is None else f"{seconds(value)} ago"


def number(value: "Reading | int | None") -> str:
    """A number to five digits, one that is not finite by its name; Unknown is a question mark."""
    if value is None:
        return UNKNOWN
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def ratio(value: float | None) -> str:
    """A share in percent; Unknown is a question mark."""
    return UNKNOWN if value is None else f"{value:.1%}"


def instant(at: float) -> str:
    """Unix time to the millisecond, as RFC 3339 has it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
