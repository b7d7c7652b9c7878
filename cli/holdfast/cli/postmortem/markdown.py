"""A document as Markdown, as GitHub and mkdocs read it. Nothing that a job wrote is markup in it.

Source: https://spec.commonmark.org/0.31.2/#backslash-escapes, https://github.github.com/gfm/#autolinks-extension-
"""

import re
from typing import Final

from holdfast.cli.postmortem.document import Block, Bullets, Document, Heading, Paragraph, Picture, Table, Verbatim

_MARKUP: Final = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")
_LINK: Final = re.compile(r"(?i)(://|\bwww\.|\bmailto:|\bxmpp:)")
_AT_THE_START: Final = re.compile(r"^(?=[-+=])|^(\d+)(?=[.)](?:\s|$))")
_AT: Final = "@<!-- -->"
"""No address and no name of a person: GitHub makes links of them out of text, whatever is escaped in it."""
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What commands a terminal, and what turns the direction of a text around."""


def written(document: Document) -> str:
    """The whole text, with an end of line."""
    return "\n\n".join(_block(each) for each in document.blocks) + "\n"


def escaped(text: str) -> str:
    """One line of text, of which nothing is markup or becomes a link."""
    line = _MARKUP.sub(r"\\\1", " ".join(plain(text).split())).replace("@", _AT)
    return _LINK.sub(lambda found: f"{found[0][:-1]}\\{found[0][-1]}" if found[0][0] != ":" else "\\://", line)


def _begun(text: str) -> str:
    """The same where a line of the document begins: it is no item of a list, no rule and no heading."""
    return _AT_THE_START.sub(lambda found: f"{found[0]}\\", escaped(text))


def plain(text: str) -> str:
    """Without characters that are no text: each is shown by its number."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {escaped(text)}"
        case Paragraph(text):
            return _begun(text)
        case Bullets(items):
            return "\n".join(f"- {_begun(each)}" for each in items)
        case Table(headers, rows):
            head, *lines = ("| " + " | ".join(escaped(cell) for cell in line) + " |" for line in (headers, *rows))
            return "\n".join((head, "|" + "---|" * len(headers), *lines))
        case Verbatim(text):
            return _fenced(text)
        case Picture(svg, says):
            # One block without an empty line, as Markdown takes markup of HTML.
            return f"{svg}\n\n{_begun(says)}"


def _fenced(text: str) -> str:
    """Within a fence that is longer than any in it."""
    kept = plain(text)
    longest = max((len(run) for run in re.findall(r"`+", kept)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{kept}\n{fence}"
