"""`holdfast checkpoint diff|convert`: what looks at the values of tensors, and so needs torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.output import Format, Shown, emit, format_option, remark
from holdfast.cli.view.checkpoints import compared_text, size

if TYPE_CHECKING:
    from holdfast.checkpoint.convert.comparison import Compared

_SHOWN = 5


@click.command()
@click.argument("a")
@click.argument("b")
@format_option
def diff(a: str, b: str, form: Format) -> ExitCode:
    """Compare checkpoint A with B, value by value, whatever their formats and layouts.

    Exits with 1 when they differ in any bit.
    """
    with _torch():
        from holdfast.checkpoint.convert.comparison import compare
        from holdfast.checkpoint.convert.source import open_source

    found = compare(open_source(a), open_source(b))
    value = _shown(found)
    names = [*found.only_in_a, *found.only_in_b, *(each.name for each in found.differences)]
    emit(Shown(value=value, table=lambda: compared_text(value), names=lambda: names), form)
    return ExitCode.OK if found.is_equal else ExitCode.FAILED


@click.command()
@click.argument("source")
@click.argument("destination")
@click.option(
    "--to",
    "kind",
    type=click.Choice(["torch", "safetensors", "dcp", "holdfast"]),
    required=True,
    help="The format to write.",
)
@click.option(
    "--step", type=click.IntRange(min=0), help="Of a directory of checkpoints: this one, not the newest."
)
@click.option("--select", metavar="PREFIX", default="", help="Only names that begin so, without it: `model.`")
@click.option("--tensors-only", is_flag=True, help="Leave out what is no tensor, and say what that was.")
def convert(
    source: str, destination: str, kind: str, step: int | None, select: str, tensors_only: bool
) -> ExitCode:
    """Write checkpoint SOURCE of whatever format to DESTINATION, which must not exist.

    SOURCE is a directory of checkpoints or one step-… in it, a directory of torch.distributed.checkpoint,
    safetensors, or a file of torch.save. No code from it is run.
    """
    with _torch():
        from holdfast.checkpoint.convert.conversion import Kind
        from holdfast.checkpoint.convert.conversion import convert as write
        from holdfast.checkpoint.convert.source import open_source
        from holdfast.checkpoint.storage.address import is_local
        from holdfast.checkpoint.storage.local import parse_uri

    if not is_local(destination):
        fix = "name a path of this machine: only from there can it appear whole or not at all"
        raise InvalidInput(Problem(field="destination", value=destination, fix=fix))
    written = write(
        open_source(source, step),
        parse_uri(destination),
        Kind(kind),
        prefix=select,
        tensors_only=tensors_only,
    )
    for sentence in written.remarks:
        remark(sentence)
    if written.left_out:
        more = f" and {len(written.left_out) - _SHOWN} more" if len(written.left_out) > _SHOWN else ""
        remark(f"left out, as they are no tensors: {', '.join(written.left_out[:_SHOWN])}{more}")
    click.echo(
        f"{destination}: {written.tensors} tensors of {size(written.size_bytes)}, {written.objects} other objects"
    )
    return ExitCode.OK


@contextmanager
def _torch() -> Iterator[None]:
    """Raises Unavailable when what is imported within is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"torch is not installed here ({error}); install it with pip install 'holdfast[torch]'"
        ) from error


def _shown(found: "Compared") -> dict[str, Any]:
    return {
        "equal": found.equal,
        "onlyInA": list(found.only_in_a),
        "onlyInB": list(found.only_in_b),
        "differences": [
            {
                "name": each.name,
                "what": each.what,
                "count": each.count,
                "first": None if each.first is None else list(each.first),
                "largest": each.largest,
            }
            for each in found.differences
        ],
    }
