"""A document as one HTML file that asks no host for anything, runs nothing, and shows a job's words as text."""

import html
from typing import Final

from holdfast.cli.postmortem.document import Block, Bullets, Document, Heading, Paragraph, Picture, Table, Verbatim
from holdfast.cli.postmortem.markdown import plain

# Nothing is loaded and no script runs, also where an escape were missing.
# Source: https://developer.mozilla.org/en-US/docs/Web/HTTP/Reference/Headers/Content-Security-Policy
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_STYLE: Final = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; margin: 1rem 0; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884 }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere }
pre { overflow-x: auto; padding: .75rem; background: #8881 }
svg { width: 100%; height: auto }
""".strip()


def written(document: Document) -> str:
    """The whole file."""
    body = "\n".join(_block(each) for each in document.blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(document.title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def escaped(text: str) -> str:
    """Text, and never a tag or the end of an attribute."""
    return html.escape(plain(text))


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{escaped(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escaped(text)}</p>"
        case Bullets(items):
            return "<ul>\n" + "\n".join(f"<li>{escaped(each)}</li>" for each in items) + "\n</ul>"
        case Table(headers, rows):
            head = "".join(f"<th>{escaped(each)}</th>" for each in headers)
            lines = ["".join(f"<td>{escaped(cell)}</td>" for cell in row) for row in rows]
            inner = "\n".join(f"<tr>{line}</tr>" for line in lines)
            return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{inner}\n</tbody>\n</table>"
        case Verbatim(text):
            return f"<pre>{escaped(text)}</pre>"
        case Picture(svg, says):
            return f"<figure>\n{svg}\n<figcaption>{escaped(says)}</figcaption>\n</figure>"
