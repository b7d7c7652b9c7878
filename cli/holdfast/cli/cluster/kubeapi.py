"""The Kubernetes API server: whom to ask and as whom, requests to it, and what its refusals mean.

The `kubernetes` package is imported here alone. It reads kubeconfig files and runs exec plugins; the requests
themselves are plain HTTP over the connection pool it sets up, because its models would only be turned back into
what was sent.

HoldfastError
|-- Unavailable   it does not answer, or what is asked for is not installed
|   `-- Gone      what is asked for is not there any more
`-- Forbidden     the person may not; says which right is missing and who has it
"""

import logging
import os
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from holdfast.api.decoding import FAILURES
from holdfast.api.errors import Damaged, HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.api.nesting import read
from holdfast.cli.target import Target
from holdfast.wire.kube.reply import Reply

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 15.0
PAGE_OBJECTS = 500
LINES_CHUNK_BYTES = 1 << 16
DEFAULT_NAMESPACE = "default"
POD_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
GROUP = "holdfast.dev"


class Forbidden(HoldfastError):
    """The API server knows who asks, and that person may not."""


class Gone(Unavailable):
    """What the path names is not there, or not any more."""


@dataclass(frozen=True, slots=True)
class Right:
    """One right, as the API server names it.

    Those of our own kinds and of pods are needed in the job's namespace, the others in Holdfast's.

    `role` is how the chart's role is called, whose name begins with the installation's.
    """

    verb: str
    group: str
    resource: str
    role: str
    subresource: str = ""
    name: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        resource = f"{resource}.{self.group}" if self.group else resource
        named = f" {self.name}" if self.name else ""
        return f"the right to {self.verb} {resource}{named}, which {self.role} gives"


VIEW, ON_CALL = "the chart's ClusterRole ...-view", "the chart's ClusterRole ...-oncall"
READER = "the chart's Role ...-reader, in Holdfast's namespace,"
LIVE = "the chart's ClusterRole ...-live, where its value viewer.namespaces names that namespace,"
LIST_JOBS = Right("list", GROUP, "trainingjobs", VIEW)
GET_JOB = Right("get", GROUP, "trainingjobs", VIEW)
PATCH_JOB = Right("patch", GROUP, "trainingjobs", "the chart's ClusterRole ...-edit")
CREATE_INTERVENTION = Right("create", GROUP, "interventions", ON_CALL)
GET_POD_LOG = Right("get", "", "pods", VIEW, "log")
GET_INTERVENTION = Right("get", GROUP, "interventions", VIEW)


def get_watchdog(service: str) -> Right:
    """To ask the watchdog through the API server."""
    return Right("get", "", "services", READER, "proxy", service)


def create_token(account: str) -> Right:
    """To get the token that the watchdog asks for."""
    return Right("create", "", "serviceaccounts", READER, "token", account)


def create_namespace_token(account: str) -> Right:
    """To get a token that reads the jobs of one namespace: that of the account there."""
    return Right("create", "", "serviceaccounts", LIVE, "token", account)


@dataclass(frozen=True, slots=True)
class KubeApi:
    """One API server, asked as one user.

    `client` is the kubernetes package's: its connections and login. `namespace` is the one meant where none is
    named, `user` is how an error calls who asks.
    """

    client: Any
    server: str
    namespace: str
    user: str

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """One request. Raises Unavailable when there is no answer, or the credentials are not taken."""
        answer = self._request(method, path + _written(query), body=body, headers=headers)
        return Reply(answer.status, answer.data, answer.headers)

    def opened(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Any:
        """An answer that is read while it comes, however long that takes; close it. Raises as `ask`."""
        return self._request(method, path, body=body, headers=headers, timeout_s=None, whole=False)

    def lines(self, path: str, right: Right | str, *, query: Mapping[str, str]) -> Iterator[str]:
        """A text that is read line by line while it comes. Raises Gone, and as `ask` and `refusal_of` do.

        With `follow` in the query it may be silent for as long as it likes.
        """
        import urllib3

        timeout_s = None if "follow" in query else ANSWER_TIMEOUT_S
        answer = self._request("GET", path + _written(query), timeout_s=timeout_s, whole=False)
        try:
            if answer.status >= 400:
                if answer.status == 404:
                    raise Gone(f"the cluster has no {path.rpartition('/')[0].rpartition('/')[2]} any more")
                raise refusal_of(Reply(answer.status, answer.data, answer.headers), right, self.user)
            unfinished = b""
            for data in answer.stream(LINES_CHUNK_BYTES):
                *lines, unfinished = (unfinished + data).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in lines)
            if unfinished:
                yield unfinished.decode("utf-8", "replace")
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"the API server at {self.server} broke off: {_plain(error)}") from error
        finally:
            answer.close()

    def _request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = ANSWER_TIMEOUT_S,
        whole: bool = True,
    ) -> Any:
        """The library's response, which is read already if it is asked for as a whole."""
        import urllib3

        sent = {"Accept": "application/json", "Content-Type": "application/json", **(headers or {})}
        self.client.update_params_for_auth(sent, [], ["BearerToken"], path, method, None)
        content = body if isinstance(body, bytes) else None if body is None else msgspec.json.encode(body)
        try:
            answer = self.client.rest_client.pool_manager.request(
                method,
                self.server + path,
                body=content,
                headers=sent,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=timeout_s),
                preload_content=whole,
                retries=False,
                redirect=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unavailable(f"the API server does not answer at {self.server}: {_plain(error)}") from error
        if answer.status == 401:
            raise Unavailable(f"the API server at {self.server} does not accept the login of {self.user}")
        return answer

    def get(self, path: str, right: Right | str, *, query: Mapping[str, str] | None = None) -> Any:
        """A decoded object. `right` names what is needed for it. Raises as `refusal_of` says."""
        return self.taken(self.ask("GET", path, query=query), right)

    def taken(self, reply: Reply, right: Right | str) -> Any:
        """What an answer holds. Raises as `refusal_of` says."""
        if reply.status >= 400:
            raise refusal_of(reply, right, self.user)
        try:
            return read(reply.content, Any)
        except FAILURES as error:
            raise Damaged(f"the API server at {self.server} sent what is no JSON: {error}") from error


def connect(target: Target) -> KubeApi:
    """Of the kubeconfig and context that `target` names; by default KUBECONFIG, ~/.kube/config, the pod's own
    account, in this order.

    Raises InvalidInput when there is no such file or context, Unavailable when a login does not work.
    """
    try:
        from kubernetes import config
        from kubernetes.client import ApiClient, Configuration
    except ImportError as error:
        raise Unavailable(
            f"a cluster needs a Python package that is missing ({error}); pip install 'holdfast[operator]' adds it"
        ) from error
    kubeconfig, context = target.kubeconfig, target.context
    files = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG") or "~/.kube/config"
    present = [file for file in files.split(os.pathsep) if file and Path(file).expanduser().is_file()]
    configuration = Configuration()
    if present:
        chosen = _read_file(config, configuration, os.pathsep.join(present), context)
        namespace = str(chosen.get("namespace") or "")
        user = f"user {chosen.get('user', '?')} of context {chosen['name']}"
    elif kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        try:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            namespace = POD_NAMESPACE_FILE.read_text(encoding="utf-8").strip()
        except (config.ConfigException, OSError) as error:
            raise Unavailable(f"this pod has no access to its API server: {error}") from error
        user = "this pod's service account"
    else:
        raise InvalidInput(
            Problem("--kubeconfig", files, "there is no such file; name one with --kubeconfig or KUBECONFIG")
        )
    server = str(configuration.host).rstrip("/")
    return KubeApi(ApiClient(configuration), server, namespace or DEFAULT_NAMESPACE, user)


def _read_file(config: Any, configuration: Any, files: str, context: str | None) -> dict[str, Any]:
    """Log in as the context says; what it holds, and its name."""
    try:
        contexts, current = config.list_kube_config_contexts(files)
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(Problem("--kubeconfig", files, f"the file cannot be used: {error}")) from error
    except yaml.YAMLError as error:
        raise InvalidInput(
            Problem("--kubeconfig", files, f"the file is not YAML: {_in_one_line(error)}")
        ) from error
    known = {each["name"]: each.get("context") or {} for each in contexts}
    name = context if context is not None else (current or {}).get("name")
    if name not in known:
        fix = f"the contexts of {files} are: {', '.join(sorted(known)) or 'none'}"
        raise InvalidInput(Problem("--context", name, fix))
    with _Complaints() as complaints:
        try:
            config.load_kube_config(files, name, configuration, persist_config=False)
        except (config.ConfigException, OSError, ValueError, KeyError) as error:
            raise InvalidInput(Problem("--context", name, f"it cannot be used: {_in_one_line(error)}")) from error
    has_login = configuration.api_key or configuration.cert_file or configuration.username
    if complaints.said and not has_login:
        raise Unavailable(f"the login of context {name} did not work: {complaints.said[-1]}")
    return {**known[name], "name": name}


class _Complaints(logging.Filter):
    """What the package logs while it logs in. A plugin that fails is only logged, and then asked as nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        self.said.append(_in_one_line(record.getMessage()))
        return False

    def __enter__(self) -> "_Complaints":
        logging.getLogger().addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeFilter(self)


def _in_one_line(said: object) -> str:
    return " ".join(str(said).split())


def listed(page: Callable[[Mapping[str, str]], Any]) -> Iterator[Any]:
    """The objects of a list, which `page` gets piece by piece for a query. Raises as `page`.

    Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks
    """
    query = {"limit": str(PAGE_OBJECTS)}
    while True:
        found = page(query)
        yield from found["items"]
        onward = found["metadata"].get("continue")
        if not onward:
            return
        query = {**query, "continue": onward}


def refusal_of(reply: Reply, right: Right | str, user: str) -> HoldfastError:
    """What a refusal means: Forbidden, InvalidInput or Unavailable. `right` is what it needs."""
    said = reply.said()
    words = said.message if said else reply.content[:300].decode("utf-8", "replace").strip()
    match reply.status:
        case 403:
            return Forbidden(f"{user} may not do this: it needs {right}; the API server says: {words}")
        case 404:
            return Unavailable(f"the cluster has no such thing: {words}; is Holdfast installed (helm list -A)?")
        case 400 | 409 | 422:
            return InvalidInput(Problem("request", said.reason if said else reply.status, words))
        case _:
            return Unavailable(f"the API server answered {reply.status}: {words or 'no reason given'}")


def _written(query: Mapping[str, str] | None) -> str:
    return f"?{urllib.parse.urlencode(query)}" if query else ""


def _plain(error: Exception) -> str:
    """The innermost reason; the library wraps it, with the name of an object nobody knows."""
    reason = getattr(error, "reason", None)
    cause = reason if isinstance(reason, Exception) else error
    return _in_one_line(cause).rpartition(">: ")[2] or type(cause).__name__
