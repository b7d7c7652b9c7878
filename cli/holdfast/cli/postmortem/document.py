"""A document before it is written in some language: blocks of plain text.

Words of jobs (names, causes, exceptions, logs) stand in it as they are. Whoever renders it escapes every text, so
that no block can be forgotten.
"""

from dataclasses import dataclass
from typing import Final

MOST_CHARACTERS: Final = 4000
"""Of one text of a job in a document: what is longer is cut, and says so."""


@dataclass(frozen=True, slots=True)
class Heading:
    """`level` 1 is the document's title."""

    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Each row has as many cells as there are headers."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines that keep their spaces: an exception, a command."""

    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """`svg` is markup of our own (`plot.py`), the only text that is not escaped; `says` is what it shows."""

    svg: str
    says: str


Block = Heading | Paragraph | Bullets | Table | Verbatim | Picture


@dataclass(frozen=True, slots=True)
class Document:
    title: str
    blocks: tuple[Block, ...]


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """The text, or its beginning and how much there was."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
