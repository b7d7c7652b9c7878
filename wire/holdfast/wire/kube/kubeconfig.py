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
        self.server = ""
        self.server_name: str | None = None
        self.proxy: str | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._loaded_at = float("-inf")

    async def load(self) -> None:
        """Read them. Raises InvalidInput."""
        await self.close()
        self._loaded_at = asyncio.get_running_loop().time()
        configuration = Configuration()
        load, refresh = cast(Any, load_kube_config), cast(Any, refresh_token)  # the package leaves them untyped
        load_pods_own = cast(Any, load_incluster_config)
        try:
            if self._path:
                loader = await load(self._path, client_configuration=configuration, persist_config=False)
                self._refreshing = asyncio.create_task(refresh(loader, configuration, REFRESH_S))
            else:
                load_pods_own(configuration)
        except (ConfigException, OSError, ValueError, KeyError) as error:
            where, fix = self._path or "(in the cluster)", f"name a kubeconfig that can be read: {error}"
            raise InvalidInput(Problem("--kubeconfig", where, fix)) from error
        self._configuration = configuration
        self.server, self.server_name = str(configuration.host).rstrip("/"), configuration.tls_server_name
        self.proxy, url = configuration.proxy or None, urlsplit(self.server)
        if not self.proxy and not proxy_bypass(url.hostname or ""):
            self.proxy = getproxies().get(url.scheme)  # What an administrator set for every program of the pod.

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

    def tls(self) -> ssl.SSLContext:
        """Trust and client certificate, as they are now."""
        context: ssl.SSLContext = RESTClientObject(self._configuration).ssl_context
        return context

    async def headers(self) -> dict[str, str]:
        """What proves who we are."""
        settings: dict[str, Any] = dict(await self._configuration.auth_settings())
        return {each["key"]: each["value"] for each in settings.values() if each["value"]}
