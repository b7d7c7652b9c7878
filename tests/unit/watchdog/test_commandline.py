"""Every flag of the watchdog, and what it becomes."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from holdfast.api.errors import InvalidInput
from holdfast.api.policy import XidAction
from holdfast.watchdog.commandline import settings_from, watchdog_options
from holdfast.watchdog.settings import Host, KubernetesAuth, RedisAddress, TlsFiles, WatchdogSettings

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def settings(*arguments: str, environment: dict[str, str] | None = None) -> WatchdogSettings:
    """What these arguments ask for. Raises as `settings_from`."""
    made: list[WatchdogSettings] = []

    @click.command()
    @watchdog_options
    def command(log_level: str, **given: Any) -> None:
        made.append(settings_from(given, environment or {}))

    result = CliRunner().invoke(command, arguments)
    if result.exception is not None:
        raise result.exception
    return made[0]


def test_the_names_of_the_flags_are_a_promise() -> None:
    @click.command()
    @watchdog_options
    def command(**given: Any) -> None: ...

    assert sorted(option for each in command.params for option in each.opts) == [
        "--account-dir",
        "--api-server",
        "--audience",
        "--auth",
        "--cordon-on",
        "--grants",
        "--identity",
        "--lease-ttl",
        "--listen",
        "--log-level",
        "--metrics-token-file",
        "--peer",
        "--state-file",
        "--store",
        "--store-password-file",
        "--tls-cert",
        "--tls-key",
        "--token-file",
        "--xid",
    ]


def test_on_one_machine_a_file_and_a_token_file_are_enough() -> None:
    made = settings("--store", "w.db", "--token-file", "t")
    assert made.store == Path("w.db").absolute()
    assert made.auth == Path("t").absolute()
    assert made.tls is None


def test_a_pod_knows_its_api_server() -> None:
    arguments = ("--store", "redis://redis/0", "--auth", "kubernetes", "--grants", "/etc/grants.yaml")
    made = settings(*arguments, "--listen", "0.0.0.0:7077", environment=IN_A_POD)
    assert made.store == RedisAddress((Host("redis", 6379),))
    assert made.auth == KubernetesAuth(
        "https://10.96.0.1:443",
        Path("/var/run/secrets/kubernetes.io/serviceaccount"),
        "holdfast",
        Path("/etc/grants.yaml"),
    )


def test_an_api_server_of_the_newer_protocol_is_put_in_brackets() -> None:
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1"}
    made = settings("--store", "w.db", "--auth", "kubernetes", environment=environment)
    assert isinstance(made.auth, KubernetesAuth)
    assert made.auth.api_server == "https://[fd00::1]:443"


def test_a_certificate_and_its_key_are_given_together() -> None:
    base = ("--store", "w.db", "--token-file", "t")
    assert settings(*base, "--tls-cert", "c", "--tls-key", "k").tls == TlsFiles(Path("c"), Path("k"))
    with pytest.raises(InvalidInput, match="--tls-key"):
        settings(*base, "--tls-cert", "c")
    with pytest.raises(InvalidInput, match="--tls-cert"):
        settings(*base, "--tls-key", "k")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("--store", "w.db"), "--token-file"),
        (("--store", "w.db", "--auth", "kubernetes"), "--api-server"),
        (("--store", "ftp://h", "--token-file", "t"), "--store"),
    ],
)
def test_what_is_missing_is_named(arguments: tuple[str, ...], names: str) -> None:
    with pytest.raises(InvalidInput, match=names):
        settings(*arguments)


def test_the_cluster_may_override_the_catalogue_of_errors() -> None:
    made = settings("--store", "w.db", "--token-file", "t", "--xid", "63=Evict", "--xid", "31=Restart")
    assert made.cluster.xid_actions == {63: XidAction.EVICT, 31: XidAction.RESTART}


@pytest.mark.parametrize(
    "wrong", ["63", "63=", "63=evict", "=Evict", "0=Evict", "1024=Evict", "x=Evict", "-1=Evict"]
)
def test_an_override_that_makes_no_sense_is_refused_with_all_that_do(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="Ignore, Watch, Restart, Evict"):
        settings("--store", "w.db", "--token-file", "t", "--xid", "79=Evict", "--xid", wrong)


def test_a_number_that_is_overridden_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="once"):
        settings("--store", "w.db", "--token-file", "t", "--xid", "79=Evict", "--xid", "79=Watch")
