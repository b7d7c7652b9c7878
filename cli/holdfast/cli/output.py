"""`-o table|wide|json|yaml|name`: what every read has."""

from collections.abc import Callable, Sequence
from enum import StrEnum

import click
import msgspec

from holdfast.cli.exitcode import ExitCode


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
    value: object,
    *,
    table: Callable[[], str],
    wide: Callable[[], str] | None = None,
    names: Callable[[], Sequence[str]],
) -> ExitCode:
    """Write one answer to stdout; a text is made only when it is asked for. Without `wide`, the table is it."""
    match form:
        case Format.JSON:
            click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
        case Format.YAML:
            emit_yaml(value)
        case Format.NAME:
            for name in names():
                click.echo(name)
        case Format.WIDE if wide is not None:
            click.echo(wide())
        case _:
            click.echo(table())
    return ExitCode.OK


def emit_yaml(value: object) -> None:
    """Write `value` to stdout as YAML."""
    import yaml

    click.echo(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True), nl=False)


def remark(sentence: str) -> None:
    """Say something beside the answer: to stderr."""
    click.echo(f"holdfast: {sentence}", err=True)
