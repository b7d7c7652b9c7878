"""Which addresses of a job file are called, and how a webhook tells of incidents."""

import hashlib
import hmac
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.console.trackers.reach import AllowedHosts, call
from holdfast.console.trackers.records import Note
from holdfast.console.trackers.webhook import OLD_S, Webhook

NOTE = Note("inc-0001", "opened", 1000.0, 7, "inc-0001: ProcessExit", "signal 9", b'{"id":"inc-0001"}')


@contextmanager
def answering(*statuses: int) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers with these statuses, the last of them again and again; and what it heard."""
    heard: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.path, dict(self.headers), body))
            self.send_response(statuses[min(len(heard), len(statuses)) - 1])
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example/oncall",
        "https://HOOKS.example",
        "http://hooks.example/",
        "https://mlflow.example:8443/",
        "https://[2001:db8::1]:443/",
    ],
)
def test_what_the_cluster_names_may_be_called(url: str) -> None:
    AllowedHosts(("hooks.example", "mlflow.example:8443", "2001:db8::1")).check(url, field="url")


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example:8443/",
        "https://hooks.example.evil/",
        "https://evil/hooks.example",
        "https://hooks.example@evil/",
        "https://evil#@hooks.example/",
        "https://mlflow.example/",
        "ftp://hooks.example/",
        "file:///etc/passwd",
        "https:///",
        "//hooks.example/",
    ],
)
def test_nothing_else_may(url: str) -> None:
    with pytest.raises(InvalidInput):
        AllowedHosts(("hooks.example", "mlflow.example:8443")).check(url, field="url")


def test_by_default_nothing_may_and_the_refusal_says_where_it_is_allowed() -> None:
    with pytest.raises(
        InvalidInput, match=r"does not let jobs call hooks.example:443; add it to trackers.allowed"
    ):
        AllowedHosts().check("https://hooks.example/", field="spec.reporting.webhook")


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "::1", "169.254.169.254", "fe80::1%eth0", "0.0.0.0", "224.0.0.1", "::ffff:127.0.0.1"]
)
def test_a_name_that_leads_to_the_machine_itself_or_to_its_cloud_is_not_called(address: str) -> None:
    with pytest.raises(Unavailable):
        AllowedHosts(("hooks.example",)).check_address(address)
    AllowedHosts(("*",)).check_address(address)


def test_a_name_is_looked_up_and_where_it_leads_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(Unavailable, match=r"169\.254\.169\.254 is no address"):
        call(AllowedHosts(("hooks.example",)), "POST", "http://hooks.example/", headers={}, field="url")


def hook(url: str, *, now: float = 1010.0, **environment: str) -> Webhook:
    return Webhook("research/gpt", url, AllowedHosts(("*",)), environment, lambda: now)


def test_an_incident_is_posted_signed_and_says_which_delivery_it_is() -> None:
    with answering(204) as (url, heard):
        hook(url, WEBHOOK_SECRET="s3cret", WEBHOOK_TOKEN="t0ken").note(NOTE)
    ((path, headers, body),) = heard
    said = json.loads(body)
    assert (path, said["job"], said["event"], said["incident"]) == (
        "/hook",
        "research/gpt",
        "opened",
        {"id": "inc-0001"},
    )
    assert headers["X-Holdfast-Delivery"] == said["delivery"] == "research/gpt/inc-0001/opened"
    assert headers["Authorization"] == "Bearer t0ken"
    expected = hmac.new(b"s3cret", b"1010." + body, hashlib.sha256).hexdigest()
    assert (headers["X-Holdfast-Timestamp"], headers["X-Holdfast-Signature"]) == ("1010", f"sha256={expected}")


def test_without_a_secret_nothing_is_signed() -> None:
    with answering(200) as (url, heard):
        hook(url).note(NOTE)
    assert not {"X-Holdfast-Signature", "Authorization"} & heard[0][1].keys()


def test_a_redirection_is_not_followed() -> None:
    with answering(302) as (url, heard), pytest.raises(InvalidInput, match="name the address itself"):
        hook(url).note(NOTE)
    assert len(heard) == 1


@pytest.mark.parametrize("status", [500, 503, 429])
def test_one_that_fails_is_asked_again_for_an_hour(status: int, caplog: pytest.LogCaptureFixture) -> None:
    with answering(status) as (url, _):
        with pytest.raises(Unavailable):
            hook(url).note(NOTE)
        hook(url, now=1000.0 + OLD_S + 1).note(NOTE)
    assert "it is too long ago" in caplog.text


def test_one_that_refuses_what_it_is_sent_gets_the_next_thing_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with answering(400, 200) as (url, heard):
        told = hook(url)
        told.note(NOTE)
        told.note(Note("inc-0001", "closed", 1005.0, 9, "title", "text"))
    assert len(heard) == 2
    assert "status=400" in caplog.text


def test_what_was_over_before_the_job_was_published_calls_nobody() -> None:
    with answering(200) as (url, heard):
        hook(url).note(Note("inc-0001", "opened", 1.0, 7, "title", "text", is_old=True))
        hook(url).note(Note("left-out-1", "lost", 1.0, 7, "title", "text"))
    assert heard == []


@pytest.mark.parametrize("url", ["https://hooks.example:99999/", "https://hooks.example:x/", "https://[::1/"])
def test_an_address_that_is_none_is_refused_as_what_it_is(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"f: .* is not accepted; write https://HOST/path"):
        AllowedHosts(("*",)).check(url, field="f")


def test_a_credential_that_cannot_be_sent_is_in_no_message() -> None:
    with answering(204) as (url, heard), pytest.raises(InvalidInput) as refused:
        call(AllowedHosts(("*",)), "POST", url, headers={"Authorization": "Bearer sec\nret"}, field="f")
    assert "plain ASCII, on one line" in str(refused.value)
    assert "ret" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert heard == []


@pytest.mark.parametrize(
    "address", ["fd00:ec2::254", "168.63.129.16", "100.100.100.200", "::ffff:100.100.100.200"]
)
def test_metadata_services_that_are_not_link_local_are_refused_too(address: str) -> None:
    with pytest.raises(Unavailable):
        AllowedHosts(("hooks.example",)).check_address(address)
