"""A watchdog by its address and a token file: for those who started the parts themselves."""

import ipaddress
import ssl
from pathlib import Path

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.trust import trusting
from holdfast.cli.directline import DirectLine
from holdfast.cli.seen import SeenStatus, seen
from holdfast.cli.site import Answer, Document
from holdfast.cli.target import Target, only_one, split_job
from holdfast.cli.watchdogclient import Line, WatchdogClient, job_statuses
from holdfast.cli.watchdogsource import WatchdogSource, hand_in, no_server_check

DEFAULT_NAMESPACE = "default"


class AddressSite:
    """Fills `site.Site`. Raises InvalidInput when the address is none or the token cannot be read."""

    def __init__(self, target: Target) -> None:
        assert target.watchdog is not None
        self._target = target
        self._address = target.watchdog
        host, port = parse_address(target.watchdog)
        token, trusted = read_token(target.token_file), read_authority(target.ca_file)
        self._line: Line = DirectLine(host, port, token, token_of=str(target.token_file), trusted=trusted)

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


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT, [ADDRESS]:PORT for IPv6. Raises InvalidInput."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_bracketed = bare != host
    if is_bracketed and not _is_ipv6(bare):
        bare = ""
    if not bare or (":" in bare and not is_bracketed) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(Problem("--watchdog", text, "write HOST:PORT, such as 127.0.0.1:7077"))
    return bare, int(port)


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def read_authority(file: Path | None) -> ssl.SSLContext | None:
    """Who may have signed the watchdog's certificate, None for nobody. Raises InvalidInput, Unavailable."""
    if file is None:
        return None
    try:
        return trusting(file.read_text(encoding="ascii"), given_by="--ca-file")
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"the certificate authority {file} cannot be read: {error}") from error


def read_token(file: Path | None) -> str:
    """The first token of a token file; roles may follow it. Raises InvalidInput, Unavailable."""
    if file is None:
        raise InvalidInput(Problem("--token-file", None, "give the file with the token that the watchdog takes"))
    try:
        words = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"the token file {file} cannot be read: {error}") from error
    if not words:
        raise InvalidInput(Problem("--token-file", str(file), "the file is empty; give one with a token"))
    return words[0]
