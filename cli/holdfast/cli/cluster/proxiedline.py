"""The way to the watchdog of a cluster: through the API server's service proxy, so that no other port is open.

The API server authenticates the person, asks RBAC, and strips the Authorization header. So the request carries a
token in a header of its own, requested a moment ago: of the account `holdfast-viewer`, which reads every job,
or of `holdfast-namespace-viewer` in the job's namespace, which reads that one. Whoever may request it may read.
"""

from dataclasses import dataclass
from typing import Final

from holdfast.api.errors import HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.cli.cluster import kubeapi
from holdfast.wire.answer import explanation, from_leader, refusal
from holdfast.wire.kube.reply import Reply

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
        """The account in Holdfast's namespace whose token reads every job."""
        return f"{self._prefix}-viewer"

    @property
    def namespace_viewer(self) -> str:
        """The account in a job's namespace whose token reads the jobs there."""
        return f"{self._prefix}-namespace-viewer"

    @property
    def console(self) -> str:
        """The console's service, as the API server's proxy takes it; it has TLS where the watchdog has."""
        scheme, _, _ = self.service.rpartition(f"{self._prefix}-watchdog")
        return f"{scheme}{self._prefix}-console:http"

    @property
    def _prefix(self) -> str:
        """What the chart begins names of its objects with."""
        return self.service.split(":")[-2].removesuffix("-watchdog")


@dataclass(frozen=True, slots=True)
class Shown:
    """A token, and the account whose it is."""

    account: str
    token: str


class ProxiedLine:
    """Fills `watchdogclient.Line`. `namespace` is that of the jobs that are asked about."""

    def __init__(self, api: kubeapi.KubeApi, installation: Installation, namespace: str) -> None:
        self._api = api
        self._at = installation
        self._namespace = namespace
        self._shown: Shown | None = None

    def ask(self, method: str, path: str, body: bytes | None = None, *, subject: str = "") -> bytes:
        """Raises also Forbidden, naming the right that is missing."""
        shown = self._shown = self._shown or self._request()
        reply = self.reach(method, path, body, {TOKEN_HEADER: shown.token})
        if reply.status < 400:
            return reply.content
        said = reply.said()
        if said is None and reply.status == 403:
            words = explanation(reply.content) or reply.status
            raise kubeapi.Forbidden(f"the watchdog refused the token of the account {shown.account}: {words}")
        if said is None:
            raise refusal(reply.status, reply.content, subject or path, f"the account {shown.account}")
        if reply.status in (403, 404):
            raise self._missing(reply, kubeapi.get_watchdog(self._at.service), f"no service {self._at.service}")
        raise Unavailable(f"the watchdog of namespace {self._at.namespace} does not answer: {said.message}")

    def reach(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        """The answer of the watchdog that leads, or the API server's that there is none. Raises Unavailable.

        The API server chooses anew for each request among the replicas behind the service.
        Source: https://kubernetes.io/docs/tasks/access-application-cluster/access-cluster-services/
        """
        proxy = f"/api/v1/namespaces/{self._at.namespace}/services/{self._at.service}/proxy{path}"
        return from_leader(lambda: self._api.ask(method, proxy, body, headers=headers))

    def console(self, path: str) -> bytes:
        """What the console answers to a read. Raises Unavailable where there is none."""
        shown = self._shown = self._shown or self._request()
        proxy = f"/api/v1/namespaces/{self._at.namespace}/services/{self._at.console}/proxy{path}"
        reply = self._api.ask("GET", proxy, headers={TOKEN_HEADER: shown.token})
        if reply.status >= 400:
            words = explanation(reply.content) or f"status {reply.status}"
            raise Unavailable(f"the console {self._at.console} does not answer: {words}")
        return reply.content

    def new_token(self) -> str:
        """One that was asked for now. Raises Unavailable, Forbidden."""
        return self._request().token

    def _request(self) -> Shown:
        """A token the watchdog takes: the one that reads most. Raises Unavailable, Forbidden."""
        account, right = self._at.viewer, str(kubeapi.create_token(self._at.viewer))
        reply = self._token_of(self._at.namespace, account)
        if reply.status == 403:
            own_account = self._at.namespace_viewer
            own = self._token_of(self._namespace, own_account)
            if own.status < 400:
                reply, account = own, f"{self._namespace}:{own_account}"
            own_right = kubeapi.create_namespace_token(own_account)
            right = f"{right}, or, for jobs of namespace {self._namespace}, {own_right}"
        if reply.status == 404:
            raise self._missing(reply, right, f"no account {account}")
        return Shown(account, str(self._api.taken(reply, right)["status"]["token"]))

    def _token_of(self, namespace: str, account: str) -> Reply:
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_LIFE_S},
        }
        return self._api.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", request)

    def _missing(self, reply: Reply, right: kubeapi.Right | str, what: str) -> HoldfastError:
        if reply.status != 404:
            return kubeapi.refusal_of(reply, right, self._api.user)
        return Unavailable(
            f"there is {what} in namespace {self._at.namespace}; say where Holdfast is installed with "
            "--holdfast-namespace and --holdfast-service"
        )
