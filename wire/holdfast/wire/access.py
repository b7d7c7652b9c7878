"""How one watchdog is reached: where it is, the token that is shown to it, and the certificates accepted of it."""

import ipaddress
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from holdfast.api.errors import InvalidInput, Problem, Unavailable

_BRACKETED: Final = re.compile(r"\[(?P<host>[^\]]*)\]")
_NAME: Final = re.compile(r"[^\s:/@\[\]]+")  # also of IP version 4
_TOKEN_BYTES_MAX: Final = 16384  # service-account tokens are one to two kilobytes

# What a launcher in a pod is told. The certificate authority as PEM: it is public, and needs no volume of its own.
WATCHDOG_CA_VARIABLE: Final = "HOLDFAST_WATCHDOG_CA"
NOT_TRUSTED: Final = "unknown CA or wrong host name"
_PEM_CHARACTERS_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port. `host` is bare, also that of IP version 6, which stands in brackets as text."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, given_by: str, fix: str = "give it as HOST:PORT", port_min: int = 1) -> Self:
        """`given_by` names the flag, `fix` what to write there; `port_min` 0 is for who listens on any free port.

        Raises InvalidInput.
        """
        host, _, port = text.rpartition(":")
        bracketed = _BRACKETED.fullmatch(host)
        if bracketed is not None:
            host = bracketed["host"]
        is_host = _NAME.fullmatch(host) is not None if bracketed is None else _is_ipv6(host)
        is_port = port.isascii() and port.isdecimal() and port_min <= int(port) <= 65535
        if not is_host or not is_port:
            raise InvalidInput(Problem(given_by, text, fix))
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def read_token(path: Path | str) -> str:
    """The first word of the file: roles may follow it. Raises Unavailable."""
    try:
        with open(path, "rb") as file:
            words = file.read(_TOKEN_BYTES_MAX).split(maxsplit=1)
        if words:
            return words[0].decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"the token file {path} cannot be read: {error}") from error
    raise Unavailable(f"the token file {path} is empty")


@dataclass(frozen=True, slots=True)
class Credential:
    """Where the token comes from: exactly one of the two."""

    token: str = field(default="", repr=False)
    file: Path | None = None

    def read(self) -> str:
        """The token to show now; a file is read anew, because tokens in it expire. Raises Unavailable."""
        return self.token if self.file is None else read_token(self.file)


@dataclass(slots=True)
class Refusals:
    """The refusals of a token in a row. `patience_s` None goes on for ever. Times are monotonic seconds."""

    patience_s: float | None = None
    _was_welcome: bool = False
    _since: float | None = None

    def welcomed(self) -> None:
        """The watchdog took the token."""
        self._was_welcome, self._since = True, None

    def is_final(self, refused: str, current: str, now: float) -> bool:
        """Whether trying again is of no use: `refused` was turned away now, `current` is what would be shown next.

        Who was never welcome says so at once, as that is somebody's mistake at the start.
        """
        if self.patience_s is None or refused != current:
            return False
        self._since = now if self._since is None else self._since
        return not self._was_welcome or now - self._since >= self.patience_s


def trusting(pem: str, *, given_by: str) -> ssl.SSLContext:
    """Accepts certificates that one in `pem` has signed, for the name that is asked for. No other counts.

    `given_by` names the flag or variable. Raises InvalidInput when it holds no certificate.
    """
    try:
        context = ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        fix = f"give a certificate authority as PEM ({error})"
        raise InvalidInput(Problem(given_by, None, fix)) from error
    # A certificate that signed itself, or an authority below another one, may be given as well.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def untrusted(at: object, error: Exception) -> str:
    """The sentence for a certificate that was not accepted. `at` is HOST:PORT."""
    return f"TLS verification of {at} failed: {NOT_TRUSTED} ({error})"


class Trust:
    """The certificate authorities in a file, which is read anew for each connection; or those in a PEM text.

    With neither there is no encryption: the watchdog is spoken to plainly. `given_by` names the flag or variable.
    """

    def __init__(self, file: Path | str | None = None, *, pem: str = "", given_by: str = "--ca-file") -> None:
        """Raises InvalidInput when `pem` is given and holds no certificate."""
        self._file = file
        self._given_by = given_by
        self._pem = pem
        self._context = trusting(pem, given_by=given_by) if pem else None

    @property
    def encrypts(self) -> bool:
        """Whether the watchdog is spoken to encrypted."""
        return self._file is not None or self._context is not None

    def pem(self) -> str:
        """The authorities as they are now; empty without encryption. Raises Unavailable, InvalidInput."""
        if self._file is not None:
            try:
                with open(self._file, encoding="ascii") as file:
                    pem = file.read(_PEM_CHARACTERS_MAX)
            except (OSError, UnicodeDecodeError) as error:
                raise Unavailable(f"the certificate authority {self._file} cannot be used: {error}") from error
            if self._context is None or pem != self._pem:
                self._pem, self._context = pem, trusting(pem, given_by=self._given_by)
        return self._pem

    def context(self) -> ssl.SSLContext | None:
        """Whose certificate is accepted now, None without encryption. Raises Unavailable: a file may be mended."""
        try:
            self.pem()
        except InvalidInput as error:
            raise Unavailable(f"the certificate authority {self._file} cannot be used: {error}") from error
        return self._context


@dataclass(frozen=True, slots=True)
class Access:
    """Where a watchdog is, the token that is shown to it, and the certificates that are accepted of it."""

    address: Address
    credential: Credential
    trust: Trust = field(default_factory=Trust)

    def url(self, scheme: str, path: str) -> str:
        """`scheme` is http or ws; each is encrypted where a certificate authority was given."""
        return f"{scheme}{'s' * self.trust.encrypts}://{self.address}{path}"
