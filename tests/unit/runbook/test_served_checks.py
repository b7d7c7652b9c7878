"""The console's answer: read by the reader's own token, and the same as the command line's."""

import json
from collections.abc import Callable

import msgspec
import pytest
import yaml
from situations import a_stopped_process
from watchedjob import JOB, WatchedJob

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.api.event import Journaled
from holdfast.console.runbook.command import in_cluster
from holdfast.console.runbook.examine import examine
from holdfast.console.runbook.symptom import Symptom
from holdfast.console.runbook.written import read_check, runnable
from holdfast.console.serving import shapes
from holdfast.console.serving.checks import Runbook
from holdfast.wire.http import WatchdogHttp

TOKEN = "of a reader"


class Watchdog(WatchdogHttp):
    """Answers as the job's watchdog does. `refuses` are resources that it does not tell."""

    def __init__(self, job: WatchedJob, *refuses: str) -> None:
        self.job = job
        self.refuses = refuses
        self.tokens: set[str | None] = set()
        self.journal: Callable[[int], bytes] | None = None

    async def answered(
        self, method: str, path: str, body: bytes | None = None, token: str | None = None
    ) -> tuple[int, bytes]:
        self.tokens.add(token)
        resource, _, query = path.rpartition("/")[2].partition("?")
        if resource in self.refuses:
            return 403, b'{"error": "you may not"}'
        if resource == "journal" and self.journal is not None:
            return 200, self.journal(int(query.removeprefix("after=")))
        return 200, self.job.ask(method, path)


async def test_a_reader_gets_what_the_command_line_says() -> None:
    job = a_stopped_process()
    watchdog = Watchdog(job)
    told = await Runbook(watchdog).of(JOB, "hung", TOKEN)
    typed = in_cluster("research", "gpt")
    known = job.known()
    assert told == {
        "symptom": "hung",
        "checks": [each.shown(typed.line(each.next)) for each in examine(Symptom.HUNG, known)],
    }
    assert watchdog.tokens == {TOKEN}
    assert shapes.Checks(**json.loads(msgspec.json.encode(told))).checks[0].id == "stopped-process"


async def test_checks_of_the_installation_are_run_for_a_reader_too() -> None:
    facts = [{"figure": {"name": "stepAgeSeconds", "above": 0.5}}]
    document = {"format": 1, "id": "ours", "title": "Ours", "symptoms": {"hung": 1}, "facts": facts}
    check = runnable(read_check(yaml.safe_dump(document).encode(), "ours.yaml"))
    watchdog = Watchdog(a_stopped_process())
    told = await Runbook(watchdog, (check,)).of(JOB, "hung", TOKEN)
    (ours,) = [each for each in told["checks"] if each["id"] == "ours"]
    assert ours["verdict"] == "suspect"
    assert "ours" not in {each["id"] for each in (await Runbook(watchdog).of(JOB, "hung", TOKEN))["checks"]}


async def test_a_journal_is_read_page_by_page() -> None:
    job = WatchedJob().train(100)
    watchdog = Watchdog(job)
    lines = tuple(job.store.tail(JOB, 0))
    read: list[int] = []

    def page(after: int) -> bytes:
        read.append(after)
        rest: tuple[Journaled, ...] = lines[after : after + 40]
        return msgspec.json.encode({"lines": rest, "next_after": after + 40 if after + 40 < len(lines) else None})

    watchdog.journal = page
    told = await Runbook(watchdog).of(JOB, "loss-spiked", TOKEN)
    assert read == list(range(0, len(lines), 40))
    checks = {each["id"]: each["verdict"] for each in told["checks"]}
    assert (checks["changed-run"], checks["world-changed"]) == ("fine", "fine")


async def test_what_is_not_told_is_unknown_and_without_a_status_nothing_is_answered() -> None:
    job = WatchedJob().train(100)
    told = await Runbook(Watchdog(job, "journal", "nodes")).of(JOB, "loss-spiked", TOKEN)
    checks = {each["id"]: each for each in told["checks"]}
    assert checks["changed-run"]["verdict"] == checks["device"]["verdict"] == "unknown"
    assert checks["changed-run"]["evidence"] == "journal could not be read: you may not"
    with pytest.raises(Unavailable, match="the status of research/gpt cannot be read: you may not"):
        await Runbook(Watchdog(job, "status")).of(JOB, "hung", TOKEN)
    with pytest.raises(InvalidInput, match="write one of loss-spiked, hung"):
        await Runbook(Watchdog(job)).of(JOB, "haunted", TOKEN)
