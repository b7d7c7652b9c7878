"""`-o table|wide|json|yaml|name`: what every read has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import click
import msgspec


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One answer in every form; a text is made only when it is asked for. Without `wide`, the table is it."""

    value: object
    table: Callable[[], str]
    wide: Callable[[], str] | None = None
    names: Callable[[], Sequence[str]]


def emit(shown: Shown, form: Format) -> None:
    """Write an answer to stdout."""
    match form:
        case Format.JSON:
            click.echo(msgspec.json.format(msgspec.json.encode(shown.value), indent=2).decode())
        case Format.YAML:
            emit_yaml(shown.value)
        case Format.NAME:
            for name in shown.names():
                click.echo(name)
        case Format.WIDE if shown.wide is not None:
            click.echo(shown.wide())
        case _:
            click.echo(shown.table())


def emit_yaml(value: object) -> None:
    """Write `value` to stdout as YAML."""
    import yaml

    click.echo(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True), nl=False)


def remark(sentence: str) -> None:
    """Say something beside the answer: to stderr."""
    click.echo(f"holdfast: {sentence}", err=True)
