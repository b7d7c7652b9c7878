"""Through which proxy the API server is reached."""

import json
from pathlib import Path

import pytest

from holdfast.wire.kube.kubeconfig import Kubeconfig

PROXY = "http://proxy.example:3128"
VARIABLES = ("HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "HTTP_PROXY")


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


async def proxy_of(folder: Path, **cluster: str) -> str | None:
    """What a kubeconfig with these fields of its cluster comes to."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", **cluster}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    credentials = Kubeconfig(str(path))
    await credentials.load()
    await credentials.close()
    return credentials.proxy


async def test_without_a_proxy_the_server_is_reached_directly(tmp_path: Path) -> None:
    assert await proxy_of(tmp_path) is None


async def test_the_proxy_of_the_environment_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    assert await proxy_of(tmp_path) == PROXY


async def test_a_server_named_in_no_proxy_is_reached_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", "localhost,.example")
    assert await proxy_of(tmp_path) is None


async def test_the_proxy_of_the_kubeconfig_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://another.example:3128")
    assert await proxy_of(tmp_path, **{"proxy-url": PROXY}) == PROXY
