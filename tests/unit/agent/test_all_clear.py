"""Of which kinds a node is free, by the word of all that judge them."""

from pathlib import Path

from holdfast.agent.conditions.book import OPEN_TOLD_MAX, all_clear
from holdfast.agent.conditions.gpus import GPU_KINDS
from holdfast.agent.conditions.nodes import NODE_KINDS
from holdfast.agent.conditions.ports import PORT_KINDS
from holdfast.agent.kernel.faults import KERNEL_KINDS
from holdfast.agent.reading import Reading
from holdfast.agent.sensing import NodeSensors, node_sensors
from holdfast.agent.settings import parse_settings
from holdfast.api.condition import AllClear, ConditionKind

FLAPPING, PCIE = ConditionKind.LINK_FLAPPING, ConditionKind.PCIE_DEGRADED
JUDGES = {"kernel-log": KERNEL_KINDS, "nvml": GPU_KINDS, "infiniband": PORT_KINDS, "node": NODE_KINDS}


def test_a_kind_is_clear_when_every_source_that_judges_it_says_so() -> None:
    ports = Reading(all_clear=(AllClear(FLAPPING, (("", "mlx5_0/1"),)),))
    assert all_clear(JUDGES, {"infiniband": ports}) == ()
    log = Reading(all_clear=(AllClear(FLAPPING, (("", "eth7"),)),))
    both = all_clear(JUDGES, {"infiniband": ports, "kernel-log": log})
    assert both == (AllClear(FLAPPING, (("", "eth7"), ("", "mlx5_0/1"))),)


def test_a_source_that_failed_says_nothing() -> None:
    assert all_clear(JUDGES, {name: Reading() for name in JUDGES}) == ()


def test_of_a_kind_that_no_source_here_judges_nothing_is_known() -> None:
    calm = Reading(all_clear=tuple(AllClear(kind) for kind in NODE_KINDS))
    assert {each.kind for each in all_clear({"node": NODE_KINDS}, {"node": calm})} == NODE_KINDS


def test_where_nothing_is_sensed_nothing_is_said() -> None:
    assert all_clear({}, {"simulated": Reading()}) == ()


def test_sources_that_except_too_many_parts_together_say_nothing() -> None:
    half = OPEN_TOLD_MAX // 2 + 1
    first = Reading(all_clear=(AllClear(FLAPPING, tuple(("", f"a{number}") for number in range(half))),))
    second = Reading(all_clear=(AllClear(FLAPPING, tuple(("", f"b{number}") for number in range(half))),))
    assert all_clear(JUDGES, {"infiniband": first, "kernel-log": second}) == ()


def senses(tmp_path: Path, *flags: str) -> NodeSensors:
    (tmp_path / "token").write_text("secret")
    own = [
        "--job",
        "a/b",
        "--run-dir",
        str(tmp_path),
        "--watchdog",
        "w:1",
        "--token-file",
        str(tmp_path / "token"),
    ]
    return node_sensors(parse_settings([*own, "--preemption", "none", *flags]))


def test_each_kind_has_a_judge_unless_its_source_is_switched_off(tmp_path: Path) -> None:
    every = senses(tmp_path, "--kernel-log", str(tmp_path / "log"))
    every.close()
    assert every.judges == JUDGES
    off = senses(tmp_path, "--kernel-log", "off", "--nvml", "off", "--infiniband", "off")
    off.close()
    assert off.judges == {"node": NODE_KINDS}
    pretending = senses(tmp_path, "--simulated-gpus", "2")
    assert pretending.judges == {}


def test_an_exporter_judges_gpus_only_where_the_driver_is_not_asked(tmp_path: Path) -> None:
    url = ("--dcgm-exporter", "http://127.0.0.1:9400/metrics", "--kernel-log", "off", "--infiniband", "off")
    beside = senses(tmp_path, *url)
    beside.close()
    assert beside.judges == {"nvml": GPU_KINDS, "node": NODE_KINDS}
    alone = senses(tmp_path, *url, "--nvml", "off")
    alone.close()
    assert alone.judges == {"dcgm-exporter": GPU_KINDS, "node": NODE_KINDS}


def test_every_kind_belongs_to_a_source() -> None:
    assert set(ConditionKind) == GPU_KINDS | PORT_KINDS | NODE_KINDS | KERNEL_KINDS
    assert PCIE in GPU_KINDS
    assert FLAPPING in PORT_KINDS & KERNEL_KINDS
