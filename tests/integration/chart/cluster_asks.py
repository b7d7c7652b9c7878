"""What these tests ask of a cluster, beside installing: kubectl, definitions, and who may do what."""

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apiserver import ApiServer, Refused
from kubernetes_binaries import kubernetes_program
from patience import patient

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GONE_S_MAX = patient(30.0)


@dataclass(frozen=True)
class Ask:
    """One right: VERB RESOURCE[.GROUP][/SUBRESOURCE], in a namespace or for the whole cluster."""

    verb: str
    resource: str
    namespace: str | None = None
    name: str | None = None

    def attributes(self) -> dict[str, str]:
        kind, _, sub = self.resource.partition("/")
        plural, _, group = kind.partition(".")
        named = {"verb": self.verb, "resource": plural, "group": group, "subresource": sub}
        return {**named, "namespace": self.namespace or "", "name": self.name or ""}


def may(cluster: ApiServer, token: str, ask: Ask) -> bool:
    """Whether whoever holds the token may. Asked as that caller, as `kubectl auth can-i` does."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": ask.attributes()},
    }
    answer = cluster.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, token=token)
    return bool(answer["status"]["allowed"])


def until_may(cluster: ApiServer, token: str, *asks: Ask) -> None:
    """Until whoever holds the token may do all of it: the server decides by what it watches of the roles."""
    deadline = time.monotonic() + GONE_S_MAX
    while missing := [ask for ask in asks if not may(cluster, token, ask)]:
        assert time.monotonic() < deadline, f"refused still: {missing}"
        time.sleep(0.05)


def kubectl(cluster: ApiServer, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(kubernetes_program("kubectl")), "--kubeconfig", str(cluster.admin_kubeconfig()), *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=patient(30))


def definition(cluster: ApiServer, plural: str) -> dict[str, Any] | None:
    try:
        return cluster.call("GET", f"{DEFINITIONS}/{plural}.holdfast.dev")
    except Refused as refused:
        if refused.code == 404:
            return None
        raise


def drop_definition(cluster: ApiServer, plural: str) -> None:
    """Delete a definition with everything defined by it; returns when it is gone."""
    try:
        cluster.call("DELETE", f"{DEFINITIONS}/{plural}.holdfast.dev")
    except Refused as refused:
        if refused.code != 404:
            raise
    deadline = time.monotonic() + GONE_S_MAX
    while definition(cluster, plural) is not None:
        assert time.monotonic() < deadline, f"{plural} is still there: {definition(cluster, plural)}"
        time.sleep(0.05)


def until_served(cluster: ApiServer, path: str) -> dict[str, Any]:
    """The answer to a GET of `path`, once a definition that is new is served."""
    deadline = time.monotonic() + GONE_S_MAX
    while True:
        try:
            return cluster.call("GET", path)
        except Refused as refused:
            if refused.code != 404 or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def explained(cluster: ApiServer, path: str) -> str:
    """What `kubectl explain` says, on one line, once the server has published the definitions."""
    deadline = time.monotonic() + GONE_S_MAX
    while (ended := kubectl(cluster, "explain", path)).returncode != 0:
        assert time.monotonic() < deadline, f"{path}: {ended.stderr}"
        time.sleep(0.2)
    return " ".join(ended.stdout.split())


def copied_chart(source: Path, into: Path, replaced: dict[str, tuple[str, str]]) -> Path:
    """A copy of the chart in which one text of each named file is another: an older or newer release of it."""
    subprocess.run(["cp", "-R", str(source), str(into)], check=True)
    for name, (old, new) in replaced.items():
        file = into / name
        text = file.read_text()
        assert old in text, f"{name} does not say {old!r}"
        file.write_text(text.replace(old, new))
    return into
