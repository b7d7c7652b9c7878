"""Which API server to ask, and as whom: the one module that imports the `kubernetes` package.

The package reads kubeconfig files and runs exec plugins; the requests themselves are plain HTTP over the
connection pool it sets up, because its models would only be turned back into what was sent.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from holdfast.api.errors import InvalidInput, Problem, Unavailable

DEFAULT_NAMESPACE = "default"
POD_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Credentials:
    """`client` is the kubernetes package's: its connections and login. `user` is how an error calls who asks."""

    client: Any
    server: str
    namespace: str
    user: str


def read_credentials(kubeconfig: Path | None, context: str | None) -> Credentials:
    """Of that file and context; by default KUBECONFIG, ~/.kube/config, the pod's own account, in this order.

    Raises InvalidInput when there is no such file or context, Unavailable when a login does not work.
    """
    try:
        from kubernetes import config
        from kubernetes.client import ApiClient, Configuration
    except ImportError as error:
        raise Unavailable(
            f"a cluster needs a Python package that is missing ({error}); pip install 'holdfast[operator]' adds it"
        ) from error
    files = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG") or "~/.kube/config"
    present = [file for file in files.split(os.pathsep) if file and Path(file).expanduser().is_file()]
    configuration = Configuration()
    if not present and kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return _of_the_pod(config, ApiClient, configuration)
    if not present:
        raise InvalidInput(
            Problem("--kubeconfig", files, "there is no such file; name one with --kubeconfig or KUBECONFIG")
        )
    joined = os.pathsep.join(present)
    chosen = _read_file(config, configuration, joined, context)
    return Credentials(
        ApiClient(configuration),
        str(configuration.host).rstrip("/"),
        str(chosen.get("namespace") or DEFAULT_NAMESPACE),
        f"user {chosen.get('user', '?')} of context {chosen['name']}",
    )


def _read_file(config: Any, configuration: Any, files: str, context: str | None) -> dict[str, Any]:
    """Log in as the context says; what it holds, and its name."""
    try:
        contexts, current = config.list_kube_config_contexts(files)
    except (config.ConfigException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(Problem("--kubeconfig", files, f"the file cannot be used: {error}")) from error
    except yaml.YAMLError as error:
        raise InvalidInput(Problem("--kubeconfig", files, f"the file is not YAML: {_flat(error)}")) from error
    known = {each["name"]: each.get("context") or {} for each in contexts}
    name = context if context is not None else (current or {}).get("name")
    if name not in known:
        fix = f"the contexts of {files} are: {', '.join(sorted(known)) or 'none'}"
        raise InvalidInput(Problem("--context", name, fix))
    with _Complaints() as complaints:
        try:
            config.load_kube_config(files, name, configuration, persist_config=False)
        except (config.ConfigException, OSError, ValueError, KeyError) as error:
            raise InvalidInput(Problem("--context", name, f"it cannot be used: {_flat(error)}")) from error
    if complaints.said and not _has_login(configuration):
        raise Unavailable(f"the login of context {name} did not work: {complaints.said[-1]}")
    return {**known[name], "name": name}


def _of_the_pod(config: Any, client: Any, configuration: Any) -> Credentials:
    try:
        config.load_incluster_config(client_configuration=configuration)
        namespace = POD_NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except (config.ConfigException, OSError) as error:
        raise Unavailable(f"this pod has no access to its API server: {error}") from error
    server = str(configuration.host).rstrip("/")
    return Credentials(client(configuration), server, namespace or DEFAULT_NAMESPACE, "this pod's service account")


def _has_login(configuration: Any) -> bool:
    return bool(configuration.api_key or configuration.cert_file or configuration.username)


def _flat(error: Exception) -> str:
    return " ".join(str(error).split())


class _Complaints(logging.Filter):
    """What the package logs while it logs in. A plugin that fails is only logged, and then asked as nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        self.said.append(_flat(Exception(record.getMessage())))
        return False

    def __enter__(self) -> "_Complaints":
        logging.getLogger().addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeFilter(self)
