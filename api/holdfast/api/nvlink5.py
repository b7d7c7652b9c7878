"""XIDs 144 to 150: errors of an NVLink of the fifth generation, whose number alone does not say how bad they are.

The driver adds the unit that raised it, a severity word, the link and status words:

    149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 ...)

The first word describes the interrupt, with the reason of a link that went down in bits 20 to 25; the second is
the unit's error status: one bit per error, of NETIR and MSE one value.
Source: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, table "Xid 144-150 decode"
"""

from collections.abc import Iterator

import msgspec

from holdfast.api.bounds import Code, Name
from holdfast.api.policy import XidAction

_BITWISE = frozenset((144, 145, 146, 147, 148))


class LinkFault(msgspec.Struct, frozen=True):
    """What the driver adds to an XID from 144 to 150. `severity` is its word, "Fatal" or "Nonfatal".

    `link` is -1 when no single link is meant. `interrupt` and `status` are the first two status words.
    """

    unit: Name
    severity: Name
    link: Code
    interrupt: Code
    status: Code


class LinkRule(msgspec.Struct, frozen=True):
    """One unit. After `resets` the GPU must be reset, of `waits` XID 154 tells, `passes` need nothing."""

    xid: int
    unit: str
    resets: frozenset[int] = frozenset()
    waits: frozenset[int] = frozenset()
    passes: frozenset[int] = frozenset()


def _bits(*masks: int) -> frozenset[int]:
    return frozenset(1 << place for mask in masks for place in range(32) if mask >> place & 1)


_LINK_DOWN = "NETIR_LINK_EVT"
# Why a link went down, in bits 20 to 25. The last two are the host's own doing.
_RESET_REASONS = frozenset((0, 1, 2, 4, 10, 15, 16, 17, 18, 21, 22, *range(32, 38), 42, 43))
_HOSTS_DOING = frozenset((38, 40))

LINK_RULES = (
    LinkRule(144, "SAW_MVB", resets=_bits(0x12), passes=_bits(0x2D)),
    LinkRule(145, "RLW_CTRL", passes=_bits(0x80000000)),
    LinkRule(145, "RLW_REMAP", resets=_bits(0xC0), waits=_bits(0x3F), passes=_bits(0x80000300)),
    LinkRule(145, "RLW_RSPCOL", resets=_bits(0x2), passes=_bits(0x80000001)),
    LinkRule(145, "RLW_RXPIPE", passes=_bits(0x8000000F)),
    LinkRule(145, "RLW_SRC_TRACK", resets=_bits(0x31), waits=_bits(0xC), passes=_bits(0x80000002)),
    LinkRule(145, "RLW_TAGSTATE", resets=_bits(0x120002), passes=_bits(0x80010001)),
    LinkRule(146, "TLW_CTRL", resets=_bits(0x4), passes=_bits(0x80000003)),
    LinkRule(146, "TLW_RX", resets=_bits(0x4), passes=_bits(0x80000003)),
    LinkRule(146, "TLW_TX", resets=_bits(0x4), passes=_bits(0x80000003)),
    LinkRule(147, "TREX", passes=_bits(0x80000001)),
    LinkRule(148, "NVLPW_CTRL", passes=_bits(0x80000000)),
    LinkRule(149, "NETIR", resets=frozenset((0,))),
    LinkRule(149, "NETIR_BER_EVENT", passes=frozenset((0, 1, 2, 3))),
    LinkRule(149, "NETIR_MFDE_EVENT", resets=frozenset((1, 4, 5, 7)), passes=frozenset((3,))),
    # Of a link that went down the reason is what is looked up.
    LinkRule(149, _LINK_DOWN, resets=_RESET_REASONS, passes=_HOSTS_DOING),
    LinkRule(150, "MSE_WATCHDOG", resets=frozenset((0,))),
)

_RULES = {(rule.xid, rule.unit): rule for rule in LINK_RULES}


def link_action(xid: int, fault: LinkFault) -> XidAction | None:
    """What the decode table asks for; None when it does not know this error.

    The worst of several bits counts. What the table does not list is judged by the driver's own word: a fatal
    error evicts, any other is left to the catalogue's row.
    """
    rule = _RULES.get((xid, fault.unit.partition("/")[0]))
    statuses = tuple(_statuses(xid, fault))
    if rule is not None:
        if any(status in rule.resets for status in statuses):
            return XidAction.EVICT
        if statuses and all(status in rule.passes | rule.waits for status in statuses):
            return XidAction.WATCH if any(status in rule.waits for status in statuses) else XidAction.IGNORE
    return XidAction.EVICT if fault.severity == "Fatal" else None


def _statuses(xid: int, fault: LinkFault) -> Iterator[int]:
    if fault.unit.startswith(_LINK_DOWN):
        yield fault.interrupt >> 20 & 0x3F
    elif xid in _BITWISE:
        yield from _bits(fault.status)
    else:
        yield fault.status
