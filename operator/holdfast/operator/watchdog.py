"""The watchdog as the operator asks it: submitting, forgetting, passing on interventions."""

from pathlib import Path

import aiohttp
import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.intervention import InterventionOutcome, InterventionRequest
from holdfast.api.policy import Policy
from holdfast.wire.access import Access, Address, Credential, Trust
from holdfast.wire.http import WatchdogHttp


class Watchdog:
    """At HOST:PORT, with the token of a file that is read for every request: projected tokens change.

    `ca_file` names who may have signed its certificate, and is read as often; without, it is spoken to plainly.

    All methods raise Unavailable when it is away or in trouble, InvalidInput when it refuses.
    """

    def __init__(self, at: str, token_file: Path, ca_file: Path | None = None) -> None:
        address = Address.parse(at, given_by="--watchdog")
        self.access = Access(address, Credential(file=token_file), Trust(ca_file, given_by="--watchdog-ca-file"))
        self._http = WatchdogHttp(self.access)

    async def close(self) -> None:
        """End every connection."""
        await self._http.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """For the jobs' lines: looking up the watchdog's name is shared."""
        return self._http.session

    def authority(self) -> str:
        """Who may have signed its certificate, as PEM; empty when it is spoken to plainly. Raises Unavailable."""
        self.access.trust.context()
        return self.access.trust.pem()

    async def submit(self, policy: Policy) -> None:
        """Tell it of the job. The same policy again changes nothing."""
        await self._http.ask("POST", "/v1/jobs", msgspec.json.encode(policy))

    async def forget(self, job: str) -> None:
        """Tell it that the job is gone for good. One it does not know is fine."""
        await self._http.ask("DELETE", f"/v1/jobs/{job}")

    async def intervene(self, request: InterventionRequest) -> InterventionOutcome | None:
        """What became of it, None when the watchdog does not know the job. The same `id` again is the same one."""
        path = f"/v1/jobs/{request.job}/interventions"
        content = await self._http.ask("POST", path, msgspec.json.encode(request))
        return None if content is None else decode_json(content, InterventionOutcome)
