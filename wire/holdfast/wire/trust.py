"""Which certificates a client of the watchdog accepts, when the watchdog speaks encrypted."""

import ssl
from pathlib import Path
from typing import Final

from holdfast.api.errors import InvalidInput, Problem, Unavailable

# What a launcher in a pod is told. The certificate authority as PEM: it is public, and needs no volume of its own.
WATCHDOG_CA_VARIABLE: Final = "HOLDFAST_WATCHDOG_CA"
NOT_TRUSTED: Final = "unknown CA or wrong host name"
_PEM_CHARACTERS_MAX: Final = 1 << 20


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
