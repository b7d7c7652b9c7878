"""How a node says that Holdfast took it out of service: a taint, and an annotation that says who and why."""

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed

CORDON_TAINT = "holdfast.dev/cordoned"
CORDONED_BY = "holdfast.dev/cordoned-by"  # annotation: which job took the node out of service, and why


class CordonedBy(msgspec.Struct, frozen=True):
    """The value of the annotation CORDONED_BY, as JSON. `at` is RFC 3339; `incident` empty: somebody asked."""

    job: str
    reason: str = ""
    incident: str = ""
    at: str = ""


def read_cordoned_by(text: str | None) -> CordonedBy | None:
    """What the annotation says, None when there is none or it is not ours."""
    if text is None:
        return None
    try:
        return decode_json(text, CordonedBy)
    except Malformed:
        return None
