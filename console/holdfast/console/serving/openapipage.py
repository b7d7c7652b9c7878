"""The documentation of the API as one page of plain HTML, made of its OpenAPI document. It loads nothing."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

METHODS: Final = ("get", "post", "put", "patch", "delete")
HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title></head><body><main>
<h1>{title}</h1><p>{description}</p><p>For programs: <a href="openapi.json">openapi.json</a></p>
"""


def page_of(document: Mapping[str, Any]) -> str:
    """The page of an OpenAPI document."""
    info = document["info"]
    head = HEAD.format(title=escape(info["title"]), description=escape(info.get("description", "")))
    return head + "".join(_operations(document)) + "".join(_shapes(document)) + "</main></body></html>\n"


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method in METHODS:
            if (operation := operations.get(method)) is None:
                continue
            yield f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield f"<p>{escape(operation.get('description', ''))}</p>"
            yield from _parameters(operation.get("parameters", ()))
            for status, answer in operation.get("responses", {}).items():
                yield f"<p><b>{escape(status)}</b> {escape(answer.get('description', ''))}{_kinds(answer)}</p>"
            yield "</section>"


def _parameters(parameters: Any) -> Iterator[str]:
    if parameters:
        said = (
            f"<li><code>{escape(each['name'])}</code> in {escape(each['in'])}{_kind(each.get('schema', {}))}</li>"
            for each in parameters
        )
        yield f"<ul>{''.join(said)}</ul>"


def _kinds(answer: Mapping[str, Any]) -> str:
    return "".join(
        f": <code>{escape(kind)}</code>{_kind(content.get('schema', {}))}"
        for kind, content in answer.get("content", {}).items()
    )


def _kind(schema: Mapping[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f' <a href="#{escape(name)}">{escape(name)}</a>'
    kind = schema.get("type")
    return f", {escape(kind)}" if kind else ""


def _shapes(document: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        yield f'<section id="{escape(name)}"><h2>{escape(name)}</h2><p>{escape(schema.get("description", ""))}</p>'
        yield f"<pre>{escape(json.dumps(schema.get('properties', {}), indent=1))}</pre></section>"
