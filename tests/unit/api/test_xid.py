"""The XID catalogue and the rule that reads it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.nvlink5 import LinkFault
from holdfast.api.policy import XidAction
from holdfast.api.xid import CATALOGUE, RecoveryAction, XidClass, XidEntry, action_for, meaning_of

NO_OVERRIDES: dict[int, XidAction] = {}


@pytest.mark.parametrize("xid", [13, 31, 79])
def test_the_numbers_post_mortems_name_evict(xid: int) -> None:
    assert action_for(xid, None, NO_OVERRIDES) is XidAction.EVICT


@pytest.mark.parametrize("xid", [46, 48, 61, 62, 64, 74, 95, 110, 119, 120, 140, 143, 155, 157, 158, 167, 169])
def test_an_error_that_needs_a_reset_or_a_replacement_evicts(xid: int) -> None:
    assert action_for(xid, None, NO_OVERRIDES) is XidAction.EVICT


@pytest.mark.parametrize("xid", [8, 32, 43, 68, 69, 94, 109])
def test_an_error_of_one_process_restarts_it(xid: int) -> None:
    assert action_for(xid, None, NO_OVERRIDES) is XidAction.RESTART


@pytest.mark.parametrize("xid", [38, 44, 121, 144, 145, 146, 147, 148, 149, 150])
def test_an_error_that_matters_only_on_repetition_is_watched(xid: int) -> None:
    assert action_for(xid, None, NO_OVERRIDES) is XidAction.WATCH


@pytest.mark.parametrize("xid", [45, 63, 92, 154, 156, 171, 172])
def test_an_error_that_needs_nothing_now_is_ignored(xid: int) -> None:
    assert action_for(xid, None, NO_OVERRIDES) is XidAction.IGNORE


@given(st.integers(173, 1023))
def test_an_unknown_number_is_watched_and_never_passes_for_harmless(xid: int) -> None:
    assert action_for(xid, None, NO_OVERRIDES) is XidAction.WATCH
    assert meaning_of(xid) == "not in the catalogue"


@pytest.mark.parametrize("action", [each for each in RecoveryAction if each is not RecoveryAction.NONE])
@pytest.mark.parametrize("xid", [45, 63, 94, 154, 999])
def test_a_recovery_the_driver_asks_for_evicts_whatever_the_number(xid: int, action: RecoveryAction) -> None:
    assert action_for(xid, action.value, NO_OVERRIDES) is XidAction.EVICT


@pytest.mark.parametrize("unhelpful", [None, 0, -1, 8, 255])
def test_no_recovery_or_an_unknown_one_leaves_it_to_the_catalogue(unhelpful: int | None) -> None:
    assert action_for(94, unhelpful, NO_OVERRIDES) is XidAction.RESTART
    assert action_for(154, unhelpful, NO_OVERRIDES) is XidAction.IGNORE


@given(st.integers(1, 1023), st.sampled_from(XidAction), st.none() | st.integers(0, 9))
def test_the_jobs_override_is_the_last_word(xid: int, action: XidAction, recovery_action: int | None) -> None:
    assert action_for(xid, recovery_action, {xid: action}) is action


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: str(entry.xid))
def test_every_row_says_what_it_means_and_where_that_comes_from(entry: XidEntry) -> None:
    assert entry.meaning
    assert entry.source.startswith("https://")
    assert meaning_of(entry.xid) == entry.meaning


def test_falling_off_the_bus_is_hardware_and_a_page_fault_can_be_either() -> None:
    assert CATALOGUE[79].blames is XidClass.HARDWARE
    assert CATALOGUE[31].blames is XidClass.EITHER
    assert CATALOGUE[13].blames is XidClass.EITHER


def test_every_number_of_the_public_catalogue_has_one_row() -> None:
    assert all(number == row.xid for number, row in CATALOGUE.items())
    assert list(CATALOGUE) == list(range(1, 173))


@pytest.mark.parametrize("xid", [row.xid for row in CATALOGUE.values() if row.meaning == "unused"])
def test_a_number_that_is_listed_as_unused_is_watched_like_an_unknown_one(xid: int) -> None:
    assert action_for(xid, None, NO_OVERRIDES) is XidAction.WATCH


def test_the_status_words_come_after_the_jobs_word_and_the_drivers_and_before_the_row() -> None:
    fatal = LinkFault("SAW_MVB", "Fatal", 0, 0x21, 0x2)
    passing = LinkFault("SAW_MVB", "Nonfatal", 0, 0x21, 0x4)
    assert action_for(144, None, NO_OVERRIDES, fatal) is XidAction.EVICT
    assert action_for(144, None, NO_OVERRIDES, passing) is XidAction.IGNORE
    assert action_for(144, 4, NO_OVERRIDES, passing) is XidAction.EVICT
    assert action_for(144, None, {144: XidAction.WATCH}, fatal) is XidAction.WATCH
