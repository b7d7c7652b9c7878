"""The login of a kubeconfig file, or of the pod that runs us.

The `kubernetes` package reads both, runs exec plugins and refreshes tokens. Nothing else of it is used: its models
would take ten times the memory and a hundred times the time of what is read here.
"""

import asyncio
import ssl
from typing import Any, Final, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config import (
    ConfigException,
    load_incluster_config,
    load_kube_config,
    refresh_token,
)

from holdfast.api.errors import InvalidInput, Problem

RELOAD_S: Final = 5.0  # after a 401 the credentials are read again, but no more often than this
REFRESH_S: Final = 30.0  # how often an exec plugin is asked whether its token is still good


class Kubeconfig:
    """Fills `Login`. `path` empty means in the cluster."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._configuration = Configuration()
        self._proxy: str | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._loaded_at = float("-inf")

    async def load(self) -> None:
        """Read them. Raises InvalidInput."""
        await self.close()
        self._loaded_at = asyncio.get_running_loop().time()
        configuration = Configuration()
        try:
            if self._path:
                self._refreshing = await _load_file(self._path, configuration)
            else:
                _load_service_account(configuration)
        except (ConfigException, OSError, ValueError, KeyError) as error:
            where = self._path or "(in the cluster)"
            raise InvalidInput(
                Problem("--kubeconfig", where, f"name a kubeconfig that can be read: {error}")
            ) from error
        self._configuration = configuration
        self._proxy = configuration.proxy or _proxy_of_environment(self.server)

    async def reload(self) -> bool:
        """After a 401: read them again; False when that was done just now."""
        if asyncio.get_running_loop().time() - self._loaded_at < RELOAD_S:
            return False
        await self.load()
        return True

    async def close(self) -> None:
        """Stop refreshing."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
            self._refreshing = None

    @property
    def server(self) -> str:
        """The API server's URL."""
        return str(self._configuration.host).rstrip("/")

    @property
    def server_name(self) -> str | None:
        """The name its certificate is checked against, None for the one in the URL."""
        name: str | None = self._configuration.tls_server_name
        return name

    @property
    def proxy(self) -> str | None:
        """The proxy of the kubeconfig, or of the environment (HTTPS_PROXY, NO_PROXY)."""
        return self._proxy

    def tls(self) -> ssl.SSLContext:
        """Trust and client certificate, as they are now."""
        context: ssl.SSLContext = RESTClientObject(self._configuration).ssl_context
        return context

    async def headers(self) -> dict[str, str]:
        """What proves who we are."""
        settings: dict[str, Any] = dict(await self._configuration.auth_settings())
        return {each["key"]: each["value"] for each in settings.values() if each["value"]}


def _proxy_of_environment(server: str) -> str | None:
    """What an administrator set for every program of the pod."""
    url = urlsplit(server)
    if proxy_bypass(url.hostname or ""):
        return None
    return getproxies().get(url.scheme)


async def _load_file(path: str, into: Configuration) -> "asyncio.Task[None]":
    load, refresh = cast(Any, load_kube_config), cast(Any, refresh_token)  # the package leaves them untyped
    loader = await load(path, client_configuration=into, persist_config=False)
    return asyncio.create_task(refresh(loader, into, REFRESH_S))


def _load_service_account(into: Configuration) -> None:
    cast(Any, load_incluster_config)(into)
