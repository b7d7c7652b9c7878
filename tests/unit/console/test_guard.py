"""Limits and headers that hold whatever is asked."""

from collections.abc import MutableMapping
from typing import Any

from holdfast.console.serving.guard import BODY_BYTES_MAX, Guard, Receive, Send


async def echo(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def asked(
    path: str = "/api", query: bytes = b"", body: tuple[bytes, ...] = (b"",)
) -> tuple[int, Any, bytes]:
    """Status, headers and body of the answer to a request whose body comes in these pieces."""
    scope = {"type": "http", "path": path, "raw_path": path.encode(), "query_string": query}
    pieces = [
        {"type": "http.request", "body": each, "more_body": number + 1 < len(body)}
        for number, each in enumerate(body)
    ]
    said: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return pieces.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        said.append(message)

    await Guard(echo)(scope, receive, send)
    return said[0]["status"], dict(said[0]["headers"]), said[1]["body"]


async def test_a_body_is_handed_on_whole_or_refused() -> None:
    assert (await asked(body=(b"ab", b"cd")))[2] == b"abcd"
    status, headers, _ = await asked(body=(b"x" * BODY_BYTES_MAX, b"y"))
    assert status == 413
    assert headers[b"x-content-type-options"] == b"nosniff"


async def test_a_token_in_an_address_is_refused_and_a_word_of_a_reason_is_none() -> None:
    assert (await asked(query=b"token=secret"))[0] == 400
    assert (await asked(query=b"points=3&Access_Token=secret"))[0] == 400
    assert (await asked(query=b"request=%7B%22reason%22%3A%22token%22%7D"))[0] == 200
    assert (await asked(path="/" + "a" * 9000))[0] == 414


async def test_nothing_of_another_host_runs_in_the_page_and_no_answer_is_kept() -> None:
    _, headers, _ = await asked()
    policy = headers[b"content-security-policy"].decode()
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy
    assert headers[b"cache-control"] == b"no-store"
    assert (await asked("/static/page.js"))[1][b"cache-control"] == b"no-cache"
