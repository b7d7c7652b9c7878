"""The watchdog of a run that has its own: its process, started again when it dies, and the run's line to it."""

import asyncio
import contextlib
import sys
import time
import uuid
from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.incident import Incident
from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.ledger import LedgerReport
from holdfast.api.plan import FromOperator, ToOperator
from holdfast.api.policy import Policy
from holdfast.api.status import JobStatus, RankStatus
from holdfast.cli.embedded.childprocess import ChildProcess, exit_text
from holdfast.cli.statedirectory import ListeningAt, StateDirectory
from holdfast.cli.watchdogclient import INCIDENTS
from holdfast.wire.access import Access, Address, Credential
from holdfast.wire.http import WatchdogHttp
from holdfast.wire.line import Line, Manner, OnMalformed, Speaker

LISTENING_WITHIN_S: Final = 20.0  # it needs half a second; a busy machine may take its time
POLL_INTERVAL_S: Final = 0.02
ASKS_AGAIN_AFTER_S: Final = 0.2
DEATHS_MAX: Final = 5  # in a row, each within LISTENING_WITHIN_S of its start
ANSWER_TIMEOUT_S: Final = 5.0
MANNER: Final = Manner(
    client="run",
    retry_first_s=0.1,
    retry_most_s=0.1,  # its watchdog is on this machine, and is started again at once
    steady_s=0.0,
    ping_s=5.0,
    frame_bytes_max=16 * 1024 * 1024,
    on_malformed=OnMalformed.RECONNECT,
)


class WatchdogProcess:
    """Keeps one watchdog running on one port, so that launchers and agents find it again after its death."""

    def __init__(self, directory: StateDirectory, listen: str, say: Callable[[str], None]) -> None:
        """It is spoken to encrypted where the directory has a certificate for it."""
        self._directory = directory
        self._listen = listen
        self._say = say
        self._process: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.alive else None

    async def start(self) -> ListeningAt:
        """Start it and wait until it listens. Raises Unavailable with its last words when it does not."""
        store, token = str(self._directory.store_file), str(self._directory.token_file)
        files = ["--store", store, "--token-file", token]
        if self._directory.trust().encrypts:
            files += ["--tls-cert", str(self._directory.certificate_file)]
            files += ["--tls-key", str(self._directory.key_file)]
        process = ChildProcess(
            (sys.executable, "-m", "holdfast.watchdog", "--listen", self._listen, *files),
            log=self._directory.logs / "watchdog.log",
            directory=self._directory.root,
        )
        self._process = process
        deadline = time.monotonic() + LISTENING_WITHIN_S
        while process.alive and time.monotonic() < deadline:
            at = self._directory.listening_at()
            if at is not None and at.pid == process.pid:
                self._listen = f"{at.host}:{at.port}"
                return at
            await asyncio.wait((process.ended,), timeout=POLL_INTERVAL_S)
        if process.alive:
            await process.stop()
            raise Unavailable(f"the watchdog did not listen within {LISTENING_WITHIN_S:.0f} s; see {process.log}")
        words = process.last_line().removeprefix("holdfast watchdog: ")
        raise Unavailable(
            words or f"the watchdog ended with {exit_text(process.ended.result())}; see {process.log}"
        )

    async def supervise(self) -> None:
        """Start it again whenever it dies, until cancelled. Raises Unavailable when it keeps dying."""
        deaths = 0
        while True:
            assert self._process is not None
            started_at = time.monotonic()
            code = await asyncio.shield(self._process.ended)
            deaths = deaths + 1 if time.monotonic() - started_at < LISTENING_WITHIN_S else 1
            if deaths > DEATHS_MAX:
                words = self._process.last_line()
                raise Unavailable(f"the watchdog died {deaths} times in a row, the last words: {words}")
            self._say(f"the watchdog ended with {exit_text(code)}; starting it again, training goes on meanwhile")
            await asyncio.sleep(0.05 * 2 ** (deaths - 1))
            # A start that fails counts as one more death: the next turn sees the ended process.
            with contextlib.suppress(Unavailable):
                await self.start()

    async def stop(self) -> None:
        """End it."""
        if self._process is not None:
            await self._process.stop()


class WatchdogLink:
    """One job at the run's own watchdog. Reads raise Unavailable while it is away; the operator's line reconnects.

    It is spoken to encrypted where the directory has a certificate of it.
    """

    def __init__(self, at: str, directory: StateDirectory, job: str) -> None:
        """`at` is HOST:PORT. Raises Unavailable when the directory has no token."""
        self.at = at
        self._job = job
        credential = Credential(directory.token())
        self._access = Access(Address.parse(at, given_by="--listen"), credential, directory.trust())
        self._http = WatchdogHttp(self._access, ANSWER_TIMEOUT_S)

    async def close(self) -> None:
        await self._http.close()

    async def submit(self, policy: Policy) -> None:
        """Tell the watchdog of the job. The same policy again changes nothing."""
        await self._http.ask("POST", "/v1/jobs", msgspec.json.encode(policy))

    async def restart(self, reason: str, *, fresh: bool = False) -> None:
        """Bring a failed job back, or have one start over. Raises InvalidInput when the watchdog refuses."""
        restart = InterventionAction.RESTART
        await self._intervene(InterventionRequest(uuid.uuid4().hex, self._job, restart, reason, fresh=fresh))

    async def skip_batches(self, batches: int, reason: str) -> None:
        """Go on from the newest checkpoint without so many batches. Raises InvalidInput when it is refused."""
        skip = InterventionAction.SKIP_BATCHES
        await self._intervene(InterventionRequest(uuid.uuid4().hex, self._job, skip, reason, skip_batches=batches))

    async def give_back(self, node: str, reason: str) -> None:
        """Let a node be used again. Raises InvalidInput when the watchdog refuses."""
        put_back = InterventionAction.RETURN
        await self._intervene(InterventionRequest(uuid.uuid4().hex, self._job, put_back, reason, node=node))

    async def save(self, reason: str, within_s: float) -> str | None:
        """Have one more checkpoint committed: None once it is, else why it was not within `within_s` seconds. A
        watchdog that is away is started again, and is asked then.
        """
        checkpoint = InterventionAction.CHECKPOINT
        request = InterventionRequest(uuid.uuid4().hex, self._job, checkpoint, reason)
        away = ""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        outcome, away = await self._ask(request), ""
                    except Unavailable as error:
                        away = str(error)
                        await asyncio.sleep(ASKS_AGAIN_AFTER_S)
                        continue
                    if outcome.state is not InterventionState.PENDING:  # it waits a moment with its answer
                        return None if outcome.state is InterventionState.DONE else outcome.outcome
        except TimeoutError:
            return away or f"no checkpoint was committed within {within_s:g} s"

    async def _ask(self, request: InterventionRequest) -> InterventionOutcome:
        content = await self._http.ask("POST", f"/v1/jobs/{self._job}/interventions", msgspec.json.encode(request))
        return decode_json(content or b"", InterventionOutcome)

    async def _intervene(self, request: InterventionRequest) -> None:
        outcome = await self._ask(request)
        if outcome.state is InterventionState.REFUSED:
            raise InvalidInput(Problem(request.node or "job", self._job, outcome.outcome))

    async def status(self) -> JobStatus | None:
        """Where the job is, None when the watchdog does not know it."""
        content = await self._read("status")
        return None if content is None else decode_json(content, JobStatus)

    async def ranks(self) -> tuple[RankStatus, ...]:
        """Every rank of the round."""
        return decode_json(await self._read("ranks") or b"[]", tuple[RankStatus, ...])

    async def incidents(self) -> tuple[Incident, ...]:
        """Oldest first; the watchdog answers with the newest first."""
        return decode_json(await self._read(INCIDENTS) or b"[]", tuple[Incident, ...])[::-1]

    async def ledger(self) -> LedgerReport | None:
        """Where every GPU-second went, None when the watchdog does not know the job."""
        content = await self._read("ledger")
        return None if content is None else decode_json(content, LedgerReport)

    async def operate(self, operator: Speaker[FromOperator, ToOperator]) -> NoReturn:
        """Be the operator, for ever; reconnect when the line breaks."""
        decoder = msgspec.msgpack.Decoder(ToOperator)
        await Line(self._access, "/v1/operator", operator, decoder, MANNER, self._job).run()

    async def _read(self, resource: str) -> bytes | None:
        return await self._http.ask("GET", f"/v1/jobs/{self._job}/{resource}")
