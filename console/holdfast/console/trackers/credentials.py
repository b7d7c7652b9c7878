"""What a job's publisher has in its environment: on one machine what we have, in a cluster the job's own Secret.

Only the names below are taken out of a Secret: one that set a proxy or a search path would be another way to have
this process call or run something.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from holdfast.api.errors import Malformed, Unavailable
from holdfast.wire.kube.client import KubeClient, Request, ServiceAccount
from holdfast.wire.kube.reply import Absent

NAMES: Final = (
    "WANDB_API_KEY",
    "WANDB_MODE",
    "MLFLOW_TRACKING_URI",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_TRACKING_PASSWORD",
    "WEBHOOK_SECRET",
    "WEBHOOK_TOKEN",
)
# What any program needs to run, and says nothing of a tenant.
KEPT: Final = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR")
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Credentials(Protocol):
    """Where publishers' environments come from."""

    async def environment(self, namespace: str, secret: str) -> Mapping[str, str]:
        """That of a publisher of a job in `namespace`. Raises Unavailable."""

    async def close(self) -> None:
        """No call follows."""


class OwnEnvironment:
    """One owner: what we were started with."""

    async def environment(self, namespace: str, secret: str) -> Mapping[str, str]:
        return dict(os.environ)

    async def close(self) -> None:
        pass


class _Secret(msgspec.Struct):
    data: dict[str, str] = {}


class NamespaceSecrets:
    """Secrets in the jobs' own namespaces, read from the API server at `server`."""

    def __init__(self, server: str, account: Path = ACCOUNT) -> None:
        self._api = KubeClient(ServiceAccount(server, account), connections=8)

    async def environment(self, namespace: str, secret: str) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        path = f"/api/v1/namespaces/{namespace}/secrets/{secret}"
        try:
            content = await self._api.ask(Request("GET", path))
        except Absent:
            return kept  # a tracker may need none; what asks for one says so
        try:
            data = msgspec.json.decode(content, type=_Secret).data
            found = {name: base64.b64decode(data[name]).decode().strip() for name in data if name in NAMES}
        except (msgspec.MsgspecError, binascii.Error, UnicodeDecodeError) as error:
            raise Unavailable(
                f"the Secret {namespace}/{secret} cannot be read: {Malformed(str(error))}"
            ) from error
        return {**kept, **found}

    async def close(self) -> None:
        await self._api.close()
