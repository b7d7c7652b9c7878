"""Which pod a UID is of, as the kubelet knows it.

The kubelet keeps a folder of logs for each pod, named by its namespace, its name and its UID, and no pod can write
there. Source: https://kubernetes.io/docs/concepts/cluster-administration/logging/#log-location-node
"""

import os
from dataclasses import dataclass
from typing import Final

from holdfast.api.errors import Unavailable

_PARTS: Final = 3  # none of them may have an underscore


@dataclass(frozen=True, slots=True)
class PodName:
    """Where a pod is, and what it is called."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PodNames:
    """The pods of this node by UID."""

    def __init__(self, directory: str) -> None:
        """Raises Unavailable when the directory of logs cannot be listed."""
        self._directory = directory
        self._known: dict[str, PodName] = {}
        try:
            self._read()
        except OSError as error:
            fix = "Mount the node's /var/log/pods there, read-only, and run as root."
            raise Unavailable(
                f"The pods' log directory {directory} cannot be listed: {error.strerror}. {fix}"
            ) from error

    def of(self, uid: str) -> PodName | None:
        """The pod; None while the kubelet tells of none with this UID."""
        if uid not in self._known:
            try:
                self._read()
            except OSError:
                return None
        return self._known.get(uid)

    def _read(self) -> None:
        with os.scandir(self._directory) as entries:
            parts = [entry.name.split("_") for entry in entries]
        self._known = {each[2]: PodName(each[0], each[1]) for each in parts if len(each) == _PARTS}
