"""`holdfast console`: where a console is, the forwarding of a cluster's, and a run whose console fails."""

import asyncio
import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from holdfast.cli.cluster.consoleforward import Forwarder, TokenOfReads
from holdfast.cli.cluster.kubeapi import KubeApi
from holdfast.cli.cluster.proxiedline import TOKEN_HEADER, TOKEN_LIFE_S, ProxiedLine
from holdfast.cli.embedded import console as embedded
from holdfast.cli.embedded.console import ConsoleProcess
from holdfast.cli.main import holdfast
from holdfast.cli.output import ExitCode
from holdfast.cli.statedirectory import StateDirectory
from holdfast.console import program as console_program


def asked(*words: str) -> Any:
    return CliRunner().invoke(holdfast, ["console", *words])


def test_the_address_of_a_runs_console_has_its_token_behind_the_hash(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path)
    directory.token_file.write_text("a-token-of-the-run\n")
    directory.run_file.write_text(json.dumps({"job": "default/demo", "job_file": "job.yaml"}))
    missing = asked("--state-dir", str(tmp_path))
    assert "no console runs" in str(missing.exception)
    directory.console_file.write_text(json.dumps({"host": "127.0.0.1", "port": 7080, "pid": 1}))
    found = asked("--state-dir", str(tmp_path))
    assert found.stdout == "http://127.0.0.1:7080/#token=a-token-of-the-run\n"
    assert found.return_value in (None, ExitCode.OK)


def test_the_console_of_a_cluster_or_of_an_address_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the port that is named; for an address one is started here."""
    made: list[tuple[object, ...]] = []

    class Quiet(Forwarder):
        def __init__(self, *words: object) -> None:
            made.append(words)
            raise OSError(98, "Address already in use")

    class Line:
        def __init__(self, *_: object) -> None:
            """Nobody is asked."""

        def new_token(self) -> str:
            return "token-of-the-cluster"

    monkeypatch.setattr("holdfast.cli.cluster.kubeapi.connect", lambda _: KubeApi(None, "https://a", "ns", "me"))
    monkeypatch.setattr("holdfast.cli.cluster.proxiedline.ProxiedLine", Line)
    monkeypatch.setattr("holdfast.cli.cluster.consoleforward.Forwarder", Quiet)
    taken = asked("--namespace", "research", "--port", "7099", "--holdfast-service", "https:hf-watchdog:http")
    assert "port 7099 cannot be used" in str(taken.exception)
    assert made[0][1] == "holdfast/https:hf-console:http"
    assert made[0][3] == 7099
    started: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, words: started.append(words))
    assert "name the file" in str(asked("--watchdog", "w:7077").exception)
    named = asked("--watchdog", "w:7077", "--token-file", "t", "--ca-file", "c", "--port", "7098")
    assert "http://127.0.0.1:7098/" in named.output
    assert ":0/" not in asked("--watchdog", "w:7077", "--token-file", "t", "--port", "0").output
    words = started[0]
    assert words[1:3] == ["-m", "holdfast.console"]
    settings = console_program.command.make_context("console", words[3:]).params
    assert (settings["watchdog"], settings["listen"]) == ("w:7077", "127.0.0.1:7098")
    assert (settings["token_file"], settings["watchdog_ca_file"]) == (Path("t"), Path("c"))


class Answer:
    """What the API server answers: read while it comes."""

    status = 200
    headers: Mapping[str, str] = {"Content-Type": "application/json", "Set-Cookie": "a=b"}

    def __init__(self, content: bytes) -> None:
        self._content = BytesIO(content)

    def read1(self) -> bytes:
        return self._content.read(4)

    def close(self) -> None:
        """Nothing is held."""


class Api:
    """An API server; `asked` is what it was asked: method, path, body and the token shown to the console."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, bytes | None, str | None]] = []

    def opened(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        self.asked.append((method, path, body, headers.get(TOKEN_HEADER)))
        return Answer(b'{"jobs": []}')


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def forwarder(api: Api) -> Iterator[Forwarder]:
    made = Forwarder(cast(KubeApi, api), "hf/holdfast-console:http", lambda: "token-of-the-cluster", 0)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def fetched(
    forwarder: Forwarder, path: str, *, body: bytes | None = None, **headers: str
) -> tuple[int, bytes, Mapping[str, str]]:
    url = forwarder.address.partition("#")[0].rstrip("/") + path
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def test_who_knows_the_secret_reads_with_the_clusters_token_and_no_other_does(
    api: Api, forwarder: Forwarder
) -> None:
    secret = {"Authorization": f"Bearer {forwarder.secret}"}
    status, content, headers = fetched(forwarder, "/api/v1/jobs?a=b", **secret)
    assert (status, content) == (200, b'{"jobs": []}')
    assert headers["Content-Type"] == "application/json"
    assert headers["Set-Cookie"] is None
    proxy = "/api/v1/namespaces/hf/services/holdfast-console:http/proxy"
    assert api.asked == [("GET", f"{proxy}/api/v1/jobs?a=b", None, "token-of-the-cluster")]
    assert fetched(forwarder, "/api/v1/jobs", Authorization="Bearer guessed")[0] == 401
    assert fetched(forwarder, "/", Host="evil.example")[0] == 421
    assert len(api.asked) == 1
    assert fetched(forwarder, "/static/page.js")[0] == 200
    assert api.asked[-1][3] is None, "the page itself needs no token"
    assert fetched(forwarder, "/x", body=b"{}", **secret)[0] == 200
    assert api.asked[-1][:3] == ("POST", f"{proxy}/x", b"{}")
    assert fetched(forwarder, "/x", body=b"x" * 70_000, **secret)[0] == 413


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../../secrets",
        "/static/../../x",
        "/..#",
        "/%2e%2E/x",
        "/x/..%2f..",
        "http://a/x",
        "/./x",
        "/a\\..\\",
    ],
)
def test_no_path_leads_out_of_the_console_into_the_cluster(api: Api, forwarder: Forwarder, path: str) -> None:
    """Whoever reads the address next resolves such parts, and asks with the login of whoever forwards."""
    line = http.client.HTTPConnection("127.0.0.1", forwarder.server_address[1], timeout=20)
    line.putrequest("GET", path, skip_host=True)
    line.putheader("Host", "127.0.0.1")
    line.endheaders()
    assert line.getresponse().status == 400
    line.close()
    assert api.asked == []
    assert fetched(forwarder, "/api/v1/jobs/ns/job/forecast?request=%7B%22a%22:%22../x%22%7D")[0] == 200


def test_a_token_is_asked_for_anew_before_it_ends() -> None:
    class Line:
        count = 0

        def new_token(self) -> str:
            self.count += 1
            return f"token-{self.count}"

    now = 0.0
    token = TokenOfReads(cast(ProxiedLine, Line()), clock=lambda: now)
    assert [token(), token()] == ["token-1", "token-1"]
    now = TOKEN_LIFE_S - 1.0
    assert token() == "token-2"


@pytest.mark.parametrize("is_installed", [True, False])
async def test_a_run_goes_on_without_its_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    """It is not installed; or it ends at once, for it has no token."""
    if not is_installed:
        monkeypatch.setattr(embedded, "NEEDED", ("no_such_module",))
    said: asyncio.Queue[str] = asyncio.Queue()
    process = ConsoleProcess(StateDirectory(tmp_path), "127.0.0.1:1", said.put_nowait)
    running = asyncio.create_task(process.run())
    line = await said.get()
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await process.stop()
    assert said.empty()
    assert ("pip install 'holdfast[console]'" in line) is not is_installed
    assert ("token file" in line) is is_installed
    assert line.endswith("the run goes on without")
