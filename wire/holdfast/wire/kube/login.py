"""Who asks an API server, and how it is reached; and the simplest of them, a pod's own account."""

import ssl
from pathlib import Path
from typing import Protocol

from holdfast.api.errors import Unavailable


class Login(Protocol):
    """Asked anew for each request: tokens are replaced."""

    @property
    def server(self) -> str:
        """The API server's URL."""

    @property
    def server_name(self) -> str | None:
        """The name its certificate is checked against, None for the one in the URL."""

    @property
    def proxy(self) -> str | None:
        """The proxy to take, None for none."""

    def tls(self) -> ssl.SSLContext | bool:
        """Trust and client certificate, as they are now."""

    async def headers(self) -> dict[str, str]:
        """What proves who we are."""

    async def load(self) -> None:
        """Make ready, before anything else. Raises InvalidInput."""

    async def reload(self) -> bool:
        """After a 401: read everything again; False when that would change nothing."""

    async def close(self) -> None:
        """No call follows."""


class ServiceAccount:
    """The account whose `token` and `ca.crt` Kubernetes mounts in `folder`; the token is read for each request.

    Raises Unavailable when made without a certificate to trust.
    """

    server_name = None
    proxy = None

    def __init__(self, server: str, folder: Path) -> None:
        self.server = server
        self._token = folder / "token"
        self._tls: ssl.SSLContext | bool = True
        if server.startswith("https://"):
            authority = folder / "ca.crt"
            try:
                self._tls = ssl.create_default_context(cafile=authority)
            except (OSError, ssl.SSLError) as error:
                raise Unavailable(
                    f"the API server's certificate authority {authority} cannot be read: {error}"
                ) from error

    def tls(self) -> ssl.SSLContext | bool:
        return self._tls

    async def headers(self) -> dict[str, str]:
        """Raises Unavailable."""
        try:
            return {"Authorization": f"Bearer {self._token.read_text(encoding='utf-8').strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(f"our own token {self._token} cannot be read: {error}") from error

    async def load(self) -> None:
        pass

    async def reload(self) -> bool:
        return False

    async def close(self) -> None:
        pass
