import pytest
import yaml

from holdfast.api.errors import InvalidInput
from holdfast.api.fleet import FleetReport, Rate
from holdfast.api.policy import XidAction
from holdfast.api.xid import action_for
from holdfast.simulator.failuretable import preset, preset_names, rates_of, rates_of_fleet, table_of
from holdfast.simulator.fault import Symptom

TOTALS = {
    "llama3": 419 / (2048 * 54) * 1000,
    "rsc1-hardware": 6.5,
    "rsc1-all": 24 / 7.9 / 128 * 1000,
    "rsc2-hardware": 2.34,
    "byterobust": 419 / (2048 * 54) * 1000,
    "ft-hsdp": 2.3,
    "ft-hsdp-100k": 24 * 60 / 18 / 12_500 * 1000,
    "olmo-hybrid": 17.4,
    "spot": 7.34,
    "tpu-v4": 0.8 + 0.005 / 100 * 6 * 1000 + 0.04 / 100 * 48 / 1024 * 1000,
    "silent": 18 / (35e6 / 8 / 24) * 1000,
}


@pytest.mark.parametrize("name", sorted(TOTALS))
def test_a_preset_sums_to_the_rate_that_was_published(name: str) -> None:
    rates = rates_of(preset(name), name)
    assert sum(each.rate for each in rates) == pytest.approx(TOTALS[name], rel=0.002)
    assert all(each.source.startswith("https://") for each in rates)


def test_every_preset_is_checked_here() -> None:
    assert sorted(TOTALS) == sorted(preset_names())


def test_counts_of_the_tables_are_the_published_ones() -> None:
    assert sum(each.count or 0 for each in preset("llama3").kinds) == 419
    assert (
        sum(each.count or 0 for each in preset("llama3").kinds if "GPU" in each.name) == 268 - 6
    )  # of "GPU": and SDC
    census = {each.name: each.count for each in preset("byterobust").kinds}
    assert sum(census.values()) == 39_687 + 6_096
    assert census["job hang"] + census["MFU decline"] + census["NaN"] == 6_096


@pytest.mark.parametrize("name", sorted(TOTALS))
def test_a_code_is_one_that_sensors_act_on(name: str) -> None:
    for each in rates_of(preset(name), name):
        assert (each.code is not None) == (each.symptom is Symptom.XID)
        if each.code is not None:
            assert action_for(each.code, None, {}) in (XidAction.RESTART, XidAction.EVICT)


WRONG = {
    "{kinds: [{name: a, symptom: Hang}]}": "kinds[0]",
    "{kinds: [{name: a, symptom: Hang, rate: 1, count: 2}]}": "kinds[0]",
    "{kinds: [{name: a, symptom: Hang, count: 2}]}": "kinds[0]",
    "{node_days: 0, kinds: [{name: a, symptom: Hang, count: 2}]}": "kinds[0]",
    "{rate: 1, node_days: 1, kinds: [{name: a, symptom: Hang, count: 2}]}": "kinds[0]",
    "{kinds: [{name: a, symptom: Hang, rate: -1}]}": "kinds[0].rate",
    "{kinds: [{name: a, symptom: Hang, rate: .nan}]}": "kinds[0].rate",
    "{kinds: [{name: a, symptom: Hang, rate: .inf}]}": "kinds[0].rate",
    "{kinds: [{name: '', symptom: Hang, rate: 1}]}": "kinds[0].name",
    "{kinds: [{name: a, symptom: Hang, rate: 1}, {name: a, symptom: Nan, rate: 1}]}": "kinds[1].name",
    "{kinds: [{name: a, symptom: Hang, rate: 1, infrastructure: 1.5}]}": "infrastructure",
    "{kinds: [{name: a, symptom: Hang, rate: 1, repair: {median_s: 0}}]}": "repair.median_s",
    "{kinds: [{name: a, symptom: Hang, rate: 1, repair: {median_s: 1, sigma: 99}}]}": "repair.sigma",
    "{kinds: [{name: a, symptom: Slow, rate: 1, lasts: {median_s: -1}}]}": "lasts.median_s",
    "{kinds: [{name: a, symptom: Slow, rate: 1, factor: 0.5}]}": "kinds[0].factor",
    "{kinds: [{name: a, symptom: Hang, rate: 1, again: {median_s: 0}}]}": "again.median_s",
    "{kinds: [{name: a, symptom: Sneeze, rate: 1}]}": "kinds[0].symptom",
    "{kinds: [{name: a, symptom: Hang, rate: 1, often: 2}]}": "kinds[0]",
    "{kinds: [{name: a, symptom: Xid, rate: 1}]}": "kinds[0].code",
    "{kinds: [{name: a, symptom: Hang, rate: 1, code: 79}]}": "kinds[0].code",
    "{kinds: [{name: a, symptom: ProcessExit, rate: 1, code: 79}]}": "kinds[0].code",
    "{kinds: [{name: a, symptom: ProcessExit, rate: 1, code: 0}]}": "kinds[0].code",
    "{kinds: []}": "kinds",
    "{rate: 1, shares_of: llama3, kinds: [{name: a, symptom: Hang, rate: 1}]}": "shares_of",
    "{rate: 1, shares_of: llama4}": "shares_of",
    "[]": "mine",
    "just a word": "mine",
}


@pytest.mark.parametrize("text", WRONG)
def test_an_odd_table_is_refused_by_the_field(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        rates_of(table_of(yaml.safe_load(text), "mine"), "mine")
    assert WRONG[text] in str(refused.value)


def test_a_name_that_is_none_is_told_those_there_are() -> None:
    with pytest.raises(InvalidInput, match="llama3, olmo-hybrid"):
        preset("llama33")


def test_a_fleets_own_rates_become_rates_of_nodes() -> None:
    rows = (
        Rate("Xid", 4, 2000.0, 2.0, 0.5, 5.0),
        Rate("ProcessExit", 1, 2000.0, 0.5),
        Rate("CrashLoop", 1, 2.0, 500.0),
    )
    xid, exits = rates_of_fleet(FleetReport(at=0.0, tables={"kind": rows}), 8, "fleet.json")
    assert (xid.symptom, xid.code, xid.infrastructure) == (Symptom.XID, 79, 1.0)
    assert xid.rate == pytest.approx(2.0 / 1000 * 8 * 24 * 1000)
    assert (exits.symptom, exits.infrastructure) == (Symptom.PROCESS_EXIT, 0.0)


def test_a_fleet_that_has_not_failed_yet_is_no_table() -> None:
    with pytest.raises(InvalidInput, match="has had no failure"):
        rates_of_fleet(FleetReport(at=0.0), 8, "fleet.json")
