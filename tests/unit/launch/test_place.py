"""Which member a launcher is where nobody names it: in a pod that pod, so that its agent believes its records."""

import os
from base64 import urlsafe_b64encode
from pathlib import Path

import msgspec
import pytest
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.rendezvous.api import RendezvousParameters

from holdfast.agent.launch.settings import Bound, bound_to, place_of
from holdfast.agent.launch.torchagent import HoldfastRendezvous, settings_of
from holdfast.wire.access import Credential


def token_saying(claims: object) -> str:
    body = urlsafe_b64encode(msgspec.json.encode(claims)).decode().rstrip("=")
    return f"e30.{body}.c2ln"


POD = token_saying(
    {"sub": "system:serviceaccount:team:default", "kubernetes.io": {"pod": {"name": "gpt-0", "uid": "u"}}}
)
ON_A_NODE = token_saying(
    {"kubernetes.io": {"namespace": "team", "pod": {"name": "gpt-0"}, "node": {"name": "n7"}}}
)


@pytest.mark.parametrize(
    ("token", "environment", "member", "node"),
    [
        (POD, {}, "gpt-0", "h"),
        (POD, {"HOLDFAST_NODE": "n7"}, "gpt-0", "n7"),
        (ON_A_NODE, {}, "gpt-0", "n7"),
        (ON_A_NODE, {"HOLDFAST_MEMBER": "me", "HOLDFAST_NODE": "there"}, "me", "there"),
        ("a-word", {"HOLDFAST_MEMBER": "me"}, "me", "h"),
    ],
)
def test_a_launcher_is_who_it_is_told_to_be_else_its_pod(
    token: str, environment: dict[str, str], member: str, node: str
) -> None:
    assert place_of(Credential(token=token), environment=environment, host="h") == (member, node)


def test_elsewhere_a_launcher_is_called_after_its_host_and_its_process() -> None:
    place = place_of(Credential(token="a-word"), environment={}, host="h")
    assert place == (f"h-{os.getpid()}", "h")


@pytest.mark.parametrize(
    "token",
    [
        "",
        "..",
        "a.b.c",
        "a.\N{SNOWMAN}.c",
        "e30.W10.c",  # a list
        "e30.e30.c",  # no claims
        token_saying({"kubernetes.io": {"pod": {"name": 7}}}),
        token_saying({"kubernetes.io": {"pod": {"name": "n" * 1000}}}),
        token_saying({"kubernetes.io": None}),
    ],
)
def test_a_token_that_names_no_pod_is_no_error(token: str) -> None:
    assert bound_to(token) == Bound()


def test_stock_torchrun_in_a_pod_is_that_pod_and_uses_its_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", POD)
    monkeypatch.setenv("HOLDFAST_NODE", "n7")
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(tmp_path))
    parameters = RendezvousParameters("holdfast", "127.0.0.1:7000", "team/gpt", 1, 4)
    rendezvous = HoldfastRendezvous(parameters)
    spec = WorkerSpec("trainer", 2, rendezvous, entrypoint="python", args=())
    settings = settings_of(spec, parameters)
    assert (settings.member, settings.node, settings.run_dir) == ("gpt-0", "n7", tmp_path)
