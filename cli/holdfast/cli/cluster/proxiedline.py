"""The way to the watchdog of a cluster: through the API server's service proxy, so that no other port is open.

The API server authenticates the person, asks RBAC, and strips the Authorization header. So the request carries a
token of the account `holdfast-viewer` in a header of its own, requested a moment ago: whoever may request it may
read.
"""

from dataclasses import dataclass
from typing import Final

from holdfast.api.errors import HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.cli.cluster.kubeapi import KubeApi, Reply, refusal_of
from holdfast.cli.cluster.rights import create_token, get_watchdog
from holdfast.cli.leader import from_leader
from holdfast.cli.watchdogclient import refusal

TOKEN_HEADER: Final = "X-Holdfast-Token"
TOKEN_LIFE_S: Final = 600  # the least the API server gives
AUDIENCE: Final = "holdfast"


@dataclass(frozen=True, slots=True)
class Installation:
    """Where Holdfast is: `service` is the watchdog's, [SCHEME:]NAME:PORT as the API server's proxy takes it."""

    namespace: str
    service: str

    @classmethod
    def of(cls, namespace: str, service: str) -> "Installation":
        """Raises InvalidInput when `service` is none."""
        parts = service.split(":")
        if not 2 <= len(parts) <= 3 or not all(parts) or "/" in service:
            fix = "write NAME:PORT, or https:NAME:PORT where the watchdog has TLS"
            raise InvalidInput(Problem("--holdfast-service", service, fix))
        return cls(namespace, service)

    @property
    def viewer(self) -> str:
        """The account whose token may read; the chart names both alike."""
        name = self.service.split(":")[-2]
        return f"{name.removesuffix('-watchdog')}-viewer"


class ProxiedLine:
    """Fills `watchdogclient.Line`."""

    def __init__(self, api: KubeApi, installation: Installation) -> None:
        self._api = api
        self._at = installation
        self._token: str | None = None

    def ask(self, method: str, path: str, body: bytes | None = None, *, subject: str = "") -> bytes:
        """Raises also Forbidden, naming the right that is missing."""
        reply = self.reach(method, path, body, {TOKEN_HEADER: self.token()})
        if reply.status < 400:
            return reply.content
        said = reply.said()
        if said is None:
            raise refusal(reply.status, reply.content, subject or path, f"the account {self._at.viewer}")
        if reply.status in (403, 404):
            what = f"no service {self._at.service}"
            raise self._missing(reply, str(get_watchdog(self._at.service)), what)
        raise Unavailable(f"the watchdog of namespace {self._at.namespace} does not answer: {said.message}")

    def reach(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        """The answer of the watchdog that leads, or the API server's that there is none. Raises Unavailable.

        The API server chooses anew for each request among the replicas behind the service.
        Source: https://kubernetes.io/docs/tasks/access-application-cluster/access-cluster-services/
        """
        proxy = f"/api/v1/namespaces/{self._at.namespace}/services/{self._at.service}/proxy{path}"
        return from_leader(lambda: self._api.ask(method, proxy, body, headers=headers))

    def token(self) -> str:
        """A token the watchdog takes. Raises Unavailable, Forbidden."""
        if self._token is None:
            request = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_LIFE_S},
            }
            path = f"/api/v1/namespaces/{self._at.namespace}/serviceaccounts/{self._at.viewer}/token"
            reply = self._api.ask("POST", path, request)
            right = str(create_token(self._at.viewer))
            if reply.status == 404:
                raise self._missing(reply, right, f"no account {self._at.viewer}")
            self._token = str(self._api.taken(reply, right)["status"]["token"])
        return self._token

    def _missing(self, reply: Reply, right: str, what: str) -> HoldfastError:
        if reply.status != 404:
            return refusal_of(reply, right, self._api.user)
        return Unavailable(
            f"there is {what} in namespace {self._at.namespace}; say where Holdfast is installed with "
            "--holdfast-namespace and --holdfast-service"
        )
