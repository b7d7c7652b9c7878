"""A plain table: columns aligned, no frame, good for reading and for awk."""

from collections.abc import Sequence

from holdfast.api.status import Reading

UNKNOWN = "?"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of columns two spaces apart; the last column is not padded."""
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


def number(value: Reading | int | None) -> str:
    """A number to five digits, one that is not finite by its name; Unknown is a question mark."""
    if value is None:
        return UNKNOWN
    return f"{value:.5g}" if isinstance(value, float) else str(value)
