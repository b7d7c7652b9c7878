"""The watchdog as the operator asks it: submitting, forgetting, passing on interventions."""

import asyncio
import random
import ssl
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import HoldfastError, InvalidInput, Malformed, Problem, Unavailable
from holdfast.api.intervention import InterventionOutcome, InterventionRequest
from holdfast.api.policy import Policy
from holdfast.api.standing import TRIES_MAX, ask_again_after_s, is_standby
from holdfast.api.trust import NOT_TRUSTED, trusting

CONNECT_TIMEOUT_S: Final = 3.0
ANSWER_TIMEOUT_S: Final = 10.0
TEXT_LENGTH_MAX: Final = 500


class _Answer(msgspec.Struct, frozen=True):
    error: str = ""


class Watchdog:
    """At HOST:PORT, with the token of a file that is read for every request: projected tokens change.

    `ca_file` names who may have signed its certificate, and is read as often; without, it is spoken to plainly.

    All methods raise Unavailable when it is away or in trouble, InvalidInput when it refuses.
    """

    def __init__(self, at: str, token_file: Path, ca_file: Path | None = None) -> None:
        self._at = at
        self._token_file = token_file
        self._ca_file = ca_file
        self._trusted: tuple[str, ssl.SSLContext | bool] = ("", True)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """End every connection."""
        if self._session is not None:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """Made on first use: it belongs to the running loop."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self._session

    @property
    def line(self) -> str:
        """Where an operator connects."""
        return f"{'wss' if self._ca_file else 'ws'}://{self._at}/v1/operator"

    def authority(self) -> str:
        """Who may have signed its certificate, as PEM; empty when it is spoken to plainly. Raises Unavailable."""
        if self._ca_file is None:
            return ""
        try:
            pem = self._ca_file.read_text(encoding="ascii")
            if pem != self._trusted[0]:
                self._trusted = (pem, trusting(pem, given_by="--watchdog-ca-file"))
        except (OSError, UnicodeDecodeError, InvalidInput) as error:
            raise Unavailable(f"the certificate authority {self._ca_file} cannot be used: {error}") from error
        return pem

    def trusted(self) -> ssl.SSLContext | bool:
        """Whose certificate is accepted, as aiohttp takes it. Raises Unavailable."""
        self.authority()
        return self._trusted[1]

    def headers(self) -> dict[str, str]:
        """What proves who we are. Raises Unavailable."""
        try:
            words = self._token_file.read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(f"the watchdog's token file {self._token_file} cannot be read: {error}") from error
        if not words:
            raise Unavailable(f"the watchdog's token file {self._token_file} is empty")
        return {"Authorization": f"Bearer {words[0]}", "Content-Type": "application/json"}

    async def submit(self, policy: Policy) -> None:
        """Tell it of the job. The same policy again changes nothing."""
        await self._ask("POST", "/v1/jobs", msgspec.json.encode(policy))

    async def forget(self, job: str) -> None:
        """Tell it that the job is gone for good. One it does not know is fine."""
        await self._ask("DELETE", f"/v1/jobs/{job}", None)

    async def intervene(self, request: InterventionRequest) -> InterventionOutcome | None:
        """What became of it, None when the watchdog does not know the job. The same `id` again is the same one."""
        path = f"/v1/jobs/{request.job}/interventions"
        content = await self._ask("POST", path, msgspec.json.encode(request))
        return None if content is None else decode_json(content, InterventionOutcome)

    async def _ask(self, method: str, path: str, body: bytes | None) -> bytes | None:
        """The leader's answer, None for 404."""
        for standbys_met in range(1, TRIES_MAX + 1):
            answer, content = await self._ask_once(method, path, body)
            if not is_standby(answer.status, answer.headers):
                break
            await asyncio.sleep(ask_again_after_s(standbys_met, random.random()))
        if answer.status == 404:
            return None
        if answer.status >= 400:
            raise _refusal(answer.status, path, content)
        return content

    async def _ask_once(self, method: str, path: str, body: bytes | None) -> tuple[aiohttp.ClientResponse, bytes]:
        """The answer of whichever watchdog is met."""
        url = f"{'https' if self._ca_file else 'http'}://{self._at}{path}"
        try:
            async with self.session.request(
                method, url, data=body, headers=self.headers(), ssl=self.trusted()
            ) as answer:
                return answer, await answer.read()
        except aiohttp.ClientConnectorCertificateError as error:
            raise Unavailable(f"the watchdog at {self._at} is not believed, {NOT_TRUSTED}: {error}") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            what = str(error) or type(error).__name__
            raise Unavailable(f"the watchdog does not answer at {self._at}: {what}") from error


def _refusal(code: int, path: str, content: bytes) -> HoldfastError:
    try:
        said = decode_json(content, _Answer).error
    except Malformed:
        said = content[:TEXT_LENGTH_MAX].decode("utf-8", "replace")
    # Not being let in is a matter of the installation, which changes; a bad message never gets better.
    if code >= 500 or code in (401, 403, 408, 429):
        return Unavailable(f"the watchdog answered {code}: {said}")
    return InvalidInput(Problem(path, code, said))
