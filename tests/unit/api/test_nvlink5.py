"""The decode table of XIDs 144 to 150."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.nvlink5 import LINK_RULES, LinkFault, LinkRule, link_action
from holdfast.api.policy import XidAction

IGNORE, WATCH, EVICT = XidAction.IGNORE, XidAction.WATCH, XidAction.EVICT


def fault(unit: str, status: int, *, severity: str = "Nonfatal", interrupt: int = 0) -> LinkFault:
    return LinkFault(unit, severity, 0, interrupt, status)


# One case for each unit and outcome that the public table lists.
@pytest.mark.parametrize(
    ("xid", "unit", "status", "action"),
    [
        (144, "SAW_MVB", 0x1, IGNORE),
        (144, "SAW_MVB", 0x2, EVICT),
        (144, "SAW_MVB", 0x4, IGNORE),
        (144, "SAW_MVB", 0x8, IGNORE),
        (144, "SAW_MVB", 0x10, EVICT),
        (144, "SAW_MVB", 0x20, IGNORE),
        (145, "RLW_CTRL", 0x80000000, IGNORE),
        (145, "RLW_REMAP", 0x1, WATCH),
        (145, "RLW_REMAP", 0x20, WATCH),
        (145, "RLW_REMAP", 0x40, EVICT),
        (145, "RLW_REMAP", 0x80, EVICT),
        (145, "RLW_REMAP", 0x200, IGNORE),
        (145, "RLW_RSPCOL", 0x2, EVICT),
        (145, "RLW_RSPCOL", 0x1, IGNORE),
        (145, "RLW_RXPIPE", 0x8, IGNORE),
        (145, "RLW_SRC_TRACK", 0x1, EVICT),
        (145, "RLW_SRC_TRACK", 0x2, IGNORE),
        (145, "RLW_SRC_TRACK", 0x8, WATCH),
        (145, "RLW_SRC_TRACK", 0x20, EVICT),
        (145, "RLW_TAGSTATE", 0x100000, EVICT),
        (145, "RLW_TAGSTATE", 0x10000, IGNORE),
        (146, "TLW_CTRL", 0x4, EVICT),
        (146, "TLW_RX/TLW_RX_PIPE0", 0x4, EVICT),
        (146, "TLW_TX/TLW_TX_PIPE1", 0x80000000, IGNORE),
        (147, "TREX", 0x80000000, IGNORE),
        (148, "NVLPW_CTRL/NVLPW", 0x80000000, IGNORE),
        (149, "NETIR/NETIR_INT", 0x0, EVICT),
        (149, "NETIR_BER_EVENT", 0x3, IGNORE),
        (149, "NETIR_MFDE_EVENT", 0x3, IGNORE),
        (149, "NETIR_MFDE_EVENT", 0x5, EVICT),
        (150, "MSE_WATCHDOG", 0x0, EVICT),
    ],
)
def test_the_unit_and_its_status_say_what_is_needed(xid: int, unit: str, status: int, action: XidAction) -> None:
    assert link_action(xid, fault(unit, status)) is action


@pytest.mark.parametrize(
    ("interrupt", "action"),
    [(0x004505C6, EVICT), (0x000001C6, EVICT), (0x020001C6, EVICT), (0x02600011, IGNORE), (0x02800011, IGNORE)],
)
def test_why_a_link_went_down_stands_in_the_interrupt_word(interrupt: int, action: XidAction) -> None:
    down = fault("NETIR_LINK_EVT", 0, severity="Fatal", interrupt=interrupt)
    assert link_action(149, down) is action


def test_of_several_errors_at_once_the_worst_counts() -> None:
    assert link_action(145, fault("RLW_REMAP", 0x101)) is WATCH
    assert link_action(145, fault("RLW_REMAP", 0x141)) is EVICT


@pytest.mark.parametrize(("severity", "action"), [("Fatal", EVICT), ("Nonfatal", None)])
def test_what_the_table_does_not_list_is_judged_by_the_drivers_own_word(
    severity: str, action: XidAction | None
) -> None:
    assert link_action(145, fault("RLW_NEW_UNIT", 0x1, severity=severity)) is action
    assert link_action(144, fault("SAW_MVB", 0x40, severity=severity)) is action
    assert link_action(144, fault("SAW_MVB", 0x0, severity=severity)) is action


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF), st.sampled_from(LINK_RULES))
def test_no_status_word_is_too_odd_to_be_judged(interrupt: int, status: int, rule: LinkRule) -> None:
    judged = link_action(rule.xid, LinkFault(rule.unit, "Nonfatal", -1, interrupt, status))
    assert judged in (None, IGNORE, WATCH, EVICT)


def test_no_status_asks_for_two_things() -> None:
    for rule in LINK_RULES:
        assert not rule.resets & (rule.waits | rule.passes)
        assert not rule.waits & rule.passes
