"""What is wrong with network ports, judged from what sysfs says of them."""

import random
from pathlib import Path

from ib_tree import IbTree

from holdfast.agent.conditions.ports import PortJudge
from holdfast.agent.reading import PortCounter, PortDetail, PortState
from holdfast.agent.sensors.infiniband import ports_in
from holdfast.api.condition import Condition, ConditionKind, ConditionState

HOUR_S, DAY_S = 3600.0, 86400.0


class Ports:
    """A fake tree, the real reader and the judge, in virtual time."""

    def __init__(self, tmp_path: Path, *, adapters: int = 4) -> None:
        self.tree = IbTree(tmp_path, adapters=adapters)
        self.judge = PortJudge()
        self.now = 0.0
        self.details: tuple[PortDetail, ...] = ()
        self.look()

    def look(self) -> None:
        self.details = self.judge.observe(ports_in(str(self.tree.root)).ports, self.now)

    def passes(self, seconds: float, every_s: float = 5.0) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + every_s)
            self.look()

    def conditions(self, state: ConditionState = ConditionState.RAISED) -> dict[ConditionKind, Condition]:
        return {each.kind: each for each in self.judge.book.report(self.now) if each.state is state}


def test_healthy_ports_raise_nothing(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    ports.passes(600)
    assert ports.judge.book.report(ports.now) == ()
    assert [detail.state for detail in ports.details] == [PortState.UP] * 4
    assert (ports.details[0].rate_gbps, ports.details[0].sent_bytes) == (400.0, 4000)


def test_a_port_that_was_up_and_stays_down_is_raised_and_cleared_after_a_minute_up(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    ports.tree.down("mlx5_2")
    ports.passes(5)
    assert ConditionKind.LINK_DOWN not in ports.conditions()
    ports.passes(5)
    raised = ports.conditions()[ConditionKind.LINK_DOWN]
    assert raised.device == "mlx5_2/1"
    assert "DOWN, Disabled" in raised.says
    ports.tree.up("mlx5_2")
    ports.passes(60)
    assert ConditionKind.LINK_DOWN in ports.conditions()
    ports.passes(10)
    assert ConditionKind.LINK_DOWN in ports.conditions(ConditionState.CLEARED)


def test_a_port_that_was_never_up_is_not_a_fault(tmp_path: Path) -> None:
    tree = IbTree(tmp_path)
    tree.down("mlx5_3")
    judge = PortJudge()
    for now in range(0, 600, 5):
        judge.observe(ports_in(str(tree.root)).ports, float(now))
    assert judge.book.report(600.0) == ()


def test_an_adapter_that_is_gone_is_down(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    (ports.tree.root / "mlx5_1").rename(tmp_path / "away")
    ports.passes(10)
    assert "gone" in ports.conditions()[ConditionKind.LINK_DOWN].says


def test_a_port_whose_state_cannot_be_read_is_neither_up_nor_down(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    ports.tree.port("mlx5_0", "state", "garbage")
    ports.passes(60)
    assert ports.judge.book.report(ports.now) == ()
    assert ports.details[0].state is PortState.UNKNOWN
    assert [each.source for each in ports_in(str(ports.tree.root)).unreadable] == ["infiniband mlx5_0/1"]


def test_what_was_raised_stays_while_the_state_is_unknown(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    ports.tree.down("mlx5_0")
    ports.passes(10)
    ports.tree.port("mlx5_0", "state", "")
    ports.passes(600)
    assert ConditionKind.LINK_DOWN in ports.conditions()


def test_a_short_break_is_not_raised_and_the_third_within_an_hour_is_flapping(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    for downs in (1, 2):
        ports.tree.port("mlx5_0", "counters/link_downed", str(downs))
        ports.passes(300)
    assert ports.judge.book.report(ports.now) == ()
    ports.tree.port("mlx5_0", "counters/link_downed", "3")
    ports.passes(5)
    assert "3 times" in ports.conditions()[ConditionKind.LINK_FLAPPING].says
    assert ports.details[0].downs == 3
    ports.passes(HOUR_S - 60, every_s=30)
    assert ConditionKind.LINK_FLAPPING in ports.conditions()
    ports.passes(120, every_s=30)
    assert ConditionKind.LINK_FLAPPING in ports.conditions(ConditionState.CLEARED)


def test_an_ethernet_port_flaps_by_its_interfaces_carrier(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    ports.tree.port("mlx5_0", "gid_attrs/ndevs/0", "eth7")
    (ports.tree.root / "mlx5_0/ports/1/counters/link_downed").unlink()
    for changes in (10, 12, 14, 16):
        ports.tree.write("mlx5_0", "device/net/eth7/carrier_changes", str(changes))
        ports.passes(60)
    assert ConditionKind.LINK_FLAPPING in ports.conditions()
    assert ports.details[0].downs == 3


def test_errors_at_a_high_rate_are_raised_and_cleared_after_a_quiet_hour(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    ports.tree.port("mlx5_1", "counters/symbol_error", "119")
    ports.passes(60)
    assert ports.judge.book.report(ports.now) == ()
    ports.tree.port("mlx5_1", "counters/symbol_error", "121")
    ports.passes(5)
    raised = ports.conditions()[ConditionKind.LINK_ERRORS]
    assert (raised.device, "121 symbol_error" in raised.says) == ("mlx5_1/1", True)
    ports.passes(HOUR_S - 120, every_s=30)
    assert ConditionKind.LINK_ERRORS in ports.conditions()
    ports.passes(120, every_s=30)
    assert ConditionKind.LINK_ERRORS in ports.conditions(ConditionState.CLEARED)


def test_a_counter_that_stopped_at_its_limit_never_clears_by_its_silence(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    ports.tree.port("mlx5_1", "counters/symbol_error", "65535")
    ports.passes(5)
    assert list(ports.judge.stopped()) == [("mlx5_1/1", PortCounter.SYMBOL_ERROR)]
    ports.passes(3 * HOUR_S, every_s=300)
    assert ConditionKind.LINK_ERRORS in ports.conditions()
    ports.tree.port("mlx5_1", "counters/symbol_error", "0")
    ports.passes(60)
    assert ConditionKind.LINK_ERRORS in ports.conditions(ConditionState.CLEARED)


def test_a_port_that_comes_back_at_a_lower_rate_is_degraded_until_it_runs_at_full_rate(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    ports.tree.port("mlx5_0", "rate", "200 Gb/sec (2X NDR)")
    ports.passes(60)
    assert ports.judge.book.report(ports.now) == ()
    ports.passes(10)
    assert "200 Gb/s, it ran at 400 Gb/s" in ports.conditions()[ConditionKind.LINK_DEGRADED].says
    ports.tree.port("mlx5_0", "rate", "400 Gb/sec (4X NDR)")
    ports.passes(70)
    assert ConditionKind.LINK_DEGRADED in ports.conditions(ConditionState.CLEARED)


def test_a_port_slower_than_most_of_its_kind_is_degraded_from_the_start(tmp_path: Path) -> None:
    tree = IbTree(tmp_path)
    tree.port("mlx5_3", "rate", "100 Gb/sec (1X NDR)")
    judge = PortJudge()
    for now in range(0, 70, 5):
        judge.observe(ports_in(str(tree.root)).ports, float(now))
    (raised,) = judge.book.report(70.0)
    assert (raised.kind, raised.device) == (ConditionKind.LINK_DEGRADED, "mlx5_3/1")
    assert "its siblings run at 400 Gb/s" in raised.says


def test_a_slower_adapter_of_another_kind_is_none_of_our_business(tmp_path: Path) -> None:
    tree = IbTree(tmp_path)
    tree.write("mlx5_3", "hca_type", "MT4119")
    tree.port("mlx5_3", "rate", "25 Gb/sec (1X EDR)")
    judge = PortJudge()
    for now in range(0, 200, 5):
        judge.observe(ports_in(str(tree.root)).ports, float(now))
    assert judge.book.report(200.0) == ()


def test_a_thousand_healthy_days_with_jitter_raise_nothing() -> None:
    chance = random.Random(20261121)
    judge, now = PortJudge(), 0.0
    counters = {PortCounter.SYMBOL_ERROR: 0, PortCounter.OUT_OF_SEQUENCE: 0, PortCounter.LINK_DOWNED: 0}
    while now < 1000 * DAY_S:
        now += 0.25 * DAY_S * chance.random()
        counters[PortCounter.SYMBOL_ERROR] += chance.randrange(10)
        counters[PortCounter.OUT_OF_SEQUENCE] += chance.randrange(5_000)
        counters[PortCounter.LINK_DOWNED] += chance.random() < 0.001
        if chance.random() < 0.01:
            counters = dict.fromkeys(counters, 0)
        detail = PortDetail(device="a", port=1, state=PortState.UP, rate_gbps=400.0, counters=dict(counters))
        judge.observe((detail,), now)
        assert judge.book.report(now) == ()
