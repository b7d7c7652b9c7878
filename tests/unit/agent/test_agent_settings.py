"""The agent's command line."""

from pathlib import Path

import pytest

from holdfast.agent.settings import Cloud, parse_settings
from holdfast.api.errors import InvalidInput
from holdfast.wire.access import Address


@pytest.fixture
def given(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "token").write_text("secret")
    return {
        "--node": "node-1",
        "--job": "research/gpt",
        "--run-dir": str(tmp_path),
        "--watchdog": "127.0.0.1:7070",
        "--token-file": str(tmp_path / "token"),
    }


def arguments(given: dict[str, str]) -> list[str]:
    return [word for pair in given.items() for word in pair]


def test_what_is_not_given_has_a_safe_default(given: dict[str, str]) -> None:
    settings = parse_settings(arguments(given))
    assert settings.listen == Address(host="127.0.0.1", port=0)
    assert (settings.interval_s, settings.simulated_gpus, settings.die_with_parent) == (1.0, 0, False)


def test_every_flag_is_taken(given: dict[str, str]) -> None:
    given |= {"--listen": "0.0.0.0:9400", "--simulated-gpus": "8", "--interval": "500ms"}
    settings = parse_settings([*arguments(given), "--die-with-parent"])
    assert settings.listen == Address(host="0.0.0.0", port=9400)
    assert (settings.interval_s, settings.simulated_gpus, settings.die_with_parent) == (0.5, 8, True)
    assert str(settings.watchdog.address) == "127.0.0.1:7070"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--job", "gpt"),
        ("--watchdog", "somewhere"),
        ("--watchdog", ":80"),
        ("--listen", "127.0.0.1:99999"),
        ("--token-file", "/nowhere"),
        ("--simulated-gpus", "-1"),
        ("--interval", "1"),
        ("--interval", "0s"),
        ("--interval", "2h"),
        ("--kernel-log", "messages"),
        ("--dcgm-exporter", "host:9400"),
    ],
)
def test_a_wrong_value_is_refused_by_name(given: dict[str, str], flag: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=flag):
        parse_settings(arguments(given | {flag: value}))


@pytest.fixture
def daemon(given: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """As the DaemonSet starts it."""
    del given["--job"], given["--run-dir"]
    (tmp_path / "metrics").write_text("other")
    return given | {"--kubelet-pods": "/pods", "--metrics-token-file": str(tmp_path / "metrics")}


def test_an_agent_of_all_jobs_on_its_node_needs_no_job_and_no_run_directory(daemon: dict[str, str]) -> None:
    settings = parse_settings(arguments(daemon))
    assert (settings.kubelet_pods, settings.job, settings.run_dir) == ("/pods", None, None)
    assert settings.metrics_token_file == daemon["--metrics-token-file"]


def test_metrics_are_read_with_the_agents_own_token_where_no_other_is_given(given: dict[str, str]) -> None:
    assert parse_settings(arguments(given)).metrics_token_file == given["--token-file"]


def test_a_job_beside_the_kubelets_pods_is_refused(daemon: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="--job: 'a/b' is not accepted; leave it out"):
        parse_settings(arguments(daemon | {"--job": "a/b"}))


def test_simulated_gpus_need_a_place_for_their_script(daemon: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="--run-dir: None is not accepted; name a directory"):
        parse_settings(arguments(daemon | {"--simulated-gpus": "2"}))


@pytest.mark.parametrize("missing", ["--job", "--run-dir"])
def test_an_agent_of_one_job_needs_both(given: dict[str, str], missing: str) -> None:
    del given[missing]
    with pytest.raises(InvalidInput, match=missing):
        parse_settings(arguments(given))


def test_an_address_of_ip_version_6_stands_in_brackets(given: dict[str, str]) -> None:
    assert parse_settings(arguments(given | {"--listen": "[::]:9400"})).listen == Address(host="::", port=9400)


def test_every_source_of_the_node_is_used_where_it_is_unless_it_is_switched_off(given: dict[str, str]) -> None:
    settings = parse_settings(arguments(given))
    assert (settings.nvml, settings.infiniband, settings.node_checks) == (True, True, True)
    assert (settings.kernel_log, settings.dcgm_exporter, settings.preemption) == ("/dev/kmsg", None, Cloud.AUTO)
    off = given | {"--nvml": "off", "--kernel-log": "off", "--infiniband": "off", "--node-checks": "off"}
    settings = parse_settings(arguments(off | {"--preemption": "none"}))
    assert (settings.nvml, settings.infiniband, settings.node_checks) == (False, False, False)
    assert (settings.kernel_log, settings.preemption) == (None, Cloud.NONE)


def test_several_disks_may_be_named(given: dict[str, str]) -> None:
    more = ["--disk", "/checkpoints", "--disk", "/var/log", "--kernel-log", "/var/log/kern.log"]
    settings = parse_settings([*arguments(given), *more])
    assert (settings.disks, settings.kernel_log) == (("/checkpoints", "/var/log"), "/var/log/kern.log")
