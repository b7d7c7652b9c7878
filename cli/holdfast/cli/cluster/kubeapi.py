"""Requests to a Kubernetes API server, and what its refusals mean for the person who asked.

HoldfastError
|-- Unavailable   it does not answer, or what is asked for is not installed
|   `-- Gone      what is asked for is not there any more
`-- Forbidden     the person may not; says which right is missing and who has it
"""

import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.api.decoding import FAILURES
from holdfast.api.errors import Damaged, HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.api.nesting import read
from holdfast.cli.cluster.credentials import Credentials, read_credentials
from holdfast.cli.target import Target
from holdfast.wire.kube.reply import Reply

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 15.0
PAGE_OBJECTS = 500
LINES_CHUNK_BYTES = 1 << 16


class Forbidden(HoldfastError):
    """The API server knows who asks, and that person may not."""


class Gone(Unavailable):
    """What the path names is not there, or not any more."""


class KubeApi:
    """One API server, asked as one user."""

    def __init__(self, credentials: Credentials) -> None:
        self.server = credentials.server
        self.namespace = credentials.namespace
        self.user = credentials.user
        self._client = credentials.client

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

    def lines(self, path: str, right: str, *, query: Mapping[str, str]) -> Iterator[str]:
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
        self._client.update_params_for_auth(sent, [], ["BearerToken"], path, method, None)
        content = body if isinstance(body, bytes) else None if body is None else msgspec.json.encode(body)
        try:
            answer = self._client.rest_client.pool_manager.request(
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

    def get(self, path: str, right: str, *, query: Mapping[str, str] | None = None) -> Any:
        """A decoded object. `right` names what is needed for it. Raises as `refusal_of` says."""
        return self.taken(self.ask("GET", path, query=query), right)

    def taken(self, reply: Reply, right: str) -> Any:
        """What an answer holds. Raises as `refusal_of` says."""
        if reply.status >= 400:
            raise refusal_of(reply, right, self.user)
        try:
            return read(reply.content, Any)
        except FAILURES as error:
            raise Damaged(f"the API server at {self.server} sent what is no JSON: {error}") from error


def connect(target: Target) -> KubeApi:
    """The API server that `target` means. Raises InvalidInput, Unavailable."""
    return KubeApi(read_credentials(target.kubeconfig, target.context))


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


def refusal_of(reply: Reply, right: str, user: str) -> HoldfastError:
    """What a refusal means: Forbidden, InvalidInput or Unavailable. `right` is as `rights.Right` says it."""
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
    text = " ".join(str(cause).split())
    return text.rpartition(">: ")[2] or type(cause).__name__
