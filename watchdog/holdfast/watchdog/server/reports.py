"""Reports of agents of any version: what a later one tells besides is left out, and said to be.

A message that is one is decoded once. Only where it is none it is looked at whether that is for kinds of events or
conditions, or states of these, that this version does not have; then the rest of the report counts, and
`unreadable` names them.
"""

from typing import Any, Final

import msgspec

from holdfast.api.condition import ConditionKind, ConditionState
from holdfast.api.decoding import FAILURES, Body, tags_of
from holdfast.api.telemetry import FromAgent, NodeEvent, NodeReport, Unreadable

SOURCE: Final = "a later version"
SHOWN_MAX: Final = 4
_LENGTH_MAX: Final = 64
_STRICT: Final[msgspec.msgpack.Decoder[FromAgent]] = msgspec.msgpack.Decoder(FromAgent)
_EVENTS: Final = tags_of(NodeEvent)
_CONDITIONS: Final = frozenset(each.value for each in ConditionKind)
_STATES: Final = frozenset(each.value for each in ConditionState)
_KINDS: Final = (
    ("events", "type", _EVENTS),
    ("conditions", "kind", _CONDITIONS),
    ("conditions", "state", _STATES),
    ("all_clear", "kind", _CONDITIONS),
)


class AgentMessages:
    """Decodes what agents say."""

    def decode(self, body: Body, /) -> FromAgent:
        """Raises what msgspec's decoders do."""
        try:
            return _STRICT.decode(body)  # type: ignore[arg-type]  # of msgpack, no text
        except FAILURES:
            plain = msgspec.msgpack.decode(body)  # type: ignore[arg-type]
            if not isinstance(plain, dict) or not (left_out := _leave_out(plain)):
                raise
        report = _STRICT.decode(msgspec.msgpack.encode(plain))
        if not isinstance(report, NodeReport):
            return report
        names = ", ".join(name[:_LENGTH_MAX] for name in sorted(set(left_out))[:SHOWN_MAX])
        told = Unreadable(SOURCE, f"{len(left_out)} that this watchdog does not know were left out: {names}")
        return msgspec.structs.replace(report, unreadable=(*report.unreadable, told))


def _leave_out(report: dict[Any, Any]) -> list[str]:
    """Take the unknown ones out of `report`; their kinds."""
    left_out: list[str] = []
    for field, key, known in _KINDS:
        if not isinstance(each_of := report.get(field), list):
            continue
        kinds = [each.get(key) if isinstance(each, dict) else None for each in each_of]
        unknown = {at for at, kind in enumerate(kinds) if isinstance(kind, str) and kind not in known}
        left_out += [str(kinds[at]) for at in sorted(unknown)]
        report[field] = [each for at, each in enumerate(each_of) if at not in unknown]
    return left_out
