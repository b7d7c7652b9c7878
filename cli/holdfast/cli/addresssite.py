"""A watchdog by its address and a token file: for those who started the parts themselves."""

from holdfast.api.errors import InvalidInput, Problem
from holdfast.cli.directline import DirectLine
from holdfast.cli.seen import SeenStatus, seen
from holdfast.cli.site import Answer, Document
from holdfast.cli.target import Target, only_one, split_job
from holdfast.cli.watchdogclient import Line, WatchdogClient, job_statuses
from holdfast.cli.watchdogsource import WatchdogSource, hand_in, no_server_check
from holdfast.wire.access import Access, Address, Credential, Trust

DEFAULT_NAMESPACE = "default"


class AddressSite:
    """Fills `site.Site`. Raises InvalidInput when the address is none, Unavailable when a file cannot be read."""

    def __init__(self, target: Target) -> None:
        assert target.watchdog is not None
        self._target = target
        self._address = target.watchdog
        fix = "write HOST:PORT, such as 127.0.0.1:7077"
        address = Address.parse(target.watchdog, given_by="--watchdog", fix=fix)
        if target.token_file is None:
            fix = "give the file with the token that the watchdog takes"
            raise InvalidInput(Problem("--token-file", None, fix))
        trust = Trust(target.ca_file)
        trust.pem()  # what is no certificate is somebody's mistake, and now is when it is made
        access = Access(address, Credential(file=target.token_file), trust)
        self._line: Line = DirectLine(access, token_of=str(target.token_file))

    def statuses(self) -> tuple[SeenStatus, ...]:
        if self._target.job is not None:
            return (self.source().status(),)
        return tuple(seen(status) for status in job_statuses(self._line))

    def source(self) -> WatchdogSource:
        return WatchdogSource(self._client())

    def check(self, document: Document) -> Document:
        return no_server_check()

    def hand_in(self, document: Document, timeout_s: float) -> Answer:
        return hand_in(self._client(), document, timeout_s)

    def _client(self) -> WatchdogClient:
        named = self._target.job
        if named is None:
            named = only_one(tuple(each.job for each in job_statuses(self._line)), self._address)
        return WatchdogClient(self._line, "/".join(split_job(named, DEFAULT_NAMESPACE)))
