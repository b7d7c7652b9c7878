"""What a console answers, whichever it is: the page reads this and nothing else.

`check` asks a console for one job and raises AssertionError where an answer has another shape. The fake of the
tests and the real service both go through it.
"""

import json
import struct
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from holdfast.api.intervention import Forecast

ANSWER_S_MAX = 20.0


class Shape(BaseModel):
    """An answer; it may say more than this."""

    model_config = ConfigDict(strict=True)


T = TypeVar("T", bound=Shape)
Right = Literal["view", "logs", "operate"]
Column = list[float | None]


class WhoAmI(Shape):
    name: str
    may: list[Right]


class Listed(Shape):
    namespace: str
    name: str
    phase: str
    step: int | None
    ettr: float | None
    open_incidents: int


class Jobs(Shape):
    jobs: list[Listed]


class Line(Shape):
    phase: str
    step: int | None
    target_steps: int | None
    tokens_s: float | None
    mfu: float | None
    ettr: float | None
    left_s: float | None
    money_h: float | None
    currency: str | None


class Gpu(Shape):
    uuid: str
    state: str
    temperature_c: float | None
    why: str | None


class Node(Shape):
    name: str
    rack: str | None
    state: str
    why: str | None
    ranks: list[int]
    gpus: list[Gpu]


class Document(Shape):
    heard_at: float
    stale_s: float
    status: dict[str, Any]
    line: Line
    incidents: list[dict[str, Any]]
    nodes: list[Node]
    round: int | None
    world: int


class Mark(Shape):
    at: float
    incident: str
    kind: str
    state: str


class Series(Shape):
    at: list[float]
    step: list[int | None]
    tokens_s: Column
    mfu: Column
    loss_min: Column
    loss_median: Column
    loss_max: Column
    grad_norm: Column
    step_s: Column
    wait_share: Column
    marks: list[Mark]


class Names(Shape):
    nodes: list[str]
    racks: list[str | None]
    phases: list[str]


def check(url: str, token: str, job: str) -> None:
    """Every answer about `job` of the console at `url`. Raises AssertionError, ValidationError."""
    console = Asked(url, token)
    path = f"api/v1/jobs/{urllib.parse.quote(job)}"
    assert "view" in console.json(f"api/v1/whoami?job={urllib.parse.quote(job, safe='')}", WhoAmI).may
    assert job in [f"{each.namespace}/{each.name}" for each in console.json("api/v1/jobs", Jobs).jobs]
    document = console.json(path, Document)
    for name in ("state", "kind", "culprit", "evidence", "began_at", "detected_at"):
        assert all(name in each for each in document.incidents), name
    series = console.json(f"{path}/series?points=50", Series)
    assert all(len(values) == len(series.at) <= 50 for name, values in series if name != "marks")
    assert series.at == sorted(series.at)
    names = console.json(f"{path}/ranks/names", Names)
    check_ranks(console.bytes(f"{path}/ranks"), names)
    asked = {"id": "contract", "job": job, "action": "Checkpoint", "reason": "the contract"}
    told = console.bytes(f"{path}/forecast?request={urllib.parse.quote(json.dumps(asked))}")
    assert set(json.loads(told)) == set(Forecast.__struct_fields__)
    assert console.events(f"{path}/events").startswith("text/event-stream")
    assert Asked(url, "nobody's token").status(path) == 401
    assert console.status("api/v1/jobs/nobody/knows-it") in (403, 404)


def check_ranks(content: bytes, names: Names) -> None:
    version, n = struct.unpack_from("<II", content)
    assert version == 1
    floats = 8 + 10 * n + (-(8 + 10 * n) % 4)
    assert len(content) == floats + 8 * n
    nodes = struct.unpack_from(f"<{n}I", content, 8)
    assert all(each < len(names.nodes) for each in nodes)
    assert len(names.racks) == len(names.nodes)
    assert all(each < len(names.phases) for each in content[8 + 8 * n : 8 + 9 * n])
    assert all(each <= 3 for each in content[8 + 9 * n : 8 + 10 * n])


class Asked:
    """A console, asked with one token."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    def json(self, path: str, shape: type[T]) -> T:
        return shape.model_validate_json(self.bytes(path))

    def bytes(self, path: str) -> bytes:
        with self._open(path) as answer:
            return bytes(answer.read())

    def events(self, path: str) -> str:
        """The content type of a stream, which is left after its beginning."""
        with self._open(path) as answer:
            return str(answer.headers["Content-Type"])

    def status(self, path: str) -> int:
        try:
            with self._open(path) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def _open(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"}
        return urllib.request.urlopen(
            urllib.request.Request(self._url + path, headers=headers), timeout=ANSWER_S_MAX
        )
