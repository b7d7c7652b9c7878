"""What a reviewed token says of the pod it is bound to."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.watchdog.access.auth import Caller
from holdfast.watchdog.access.reviews import NODE_NAME, POD_NAME, Reviews, TokenReviewer
from holdfast.watchdog.settings import KubernetesAuth


async def caller_with(extra: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> Caller | None:
    """Who it is, when the API server says that of a token."""
    user = {"username": "system:serviceaccount:hf:agent", "extra": extra}
    status = {"authenticated": True, "audiences": ["holdfast"], "user": user}

    async def answer(_: Reviews, spec: object, kind: Any) -> object:
        return msgspec.convert({"status": status}, kind)

    monkeypatch.setattr(Reviews, "__init__", lambda self, _, *, now: setattr(self, "_now", now))
    monkeypatch.setattr(Reviews, "ask", answer)
    monkeypatch.setattr(Reviews, "verdict", lambda _, __, review: review())
    settings = KubernetesAuth("https://api", Path("/account"), "holdfast", None)
    return await TokenReviewer(settings, now=lambda: 0.0).caller("token")


async def test_a_bound_token_says_its_pod_and_from_kubernetes_1_30_on_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    newer = await caller_with({POD_NAME: ["agent-x"], NODE_NAME: ["node-1"]}, monkeypatch)
    older = await caller_with({POD_NAME: ["agent-x"]}, monkeypatch)
    assert newer is not None
    assert older is not None
    assert (newer.node, older.node) == ("node-1", None)
