"""`-o table|json|yaml` and `--state-dir`: what every read has."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Format(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


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
state_option = click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="The run's state directory; by default the one used last under ./.holdfast.",
)


def emit(value: object, form: Format, table: Callable[[], str]) -> None:
    """Write `value` to stdout; `table` makes the text for people and is called only for it."""
    if form is Format.JSON:
        click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
    elif form is Format.YAML:
        import yaml

        click.echo(yaml.safe_dump(msgspec.to_builtins(value), sort_keys=False, allow_unicode=True), nl=False)
    else:
        click.echo(table())
