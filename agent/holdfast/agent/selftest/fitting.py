"""Makes an answer small enough for one message to the watchdog. Pure.

What failed or is Unknown is always kept. Of what passed the words go first, then what nobody compares, then the
rest, and the answer says how much is missing.
"""

from typing import Final

import msgspec

from holdfast.api.selftest import CheckResult, Tested, Verdict

BYTES_MAX: Final = 32 << 10  # half of what a frame to the watchdog may weigh
SAYS_CHARACTERS_MAX: Final = 400
_KEPT_MAX: Final = 48  # results, should even those that did not pass be too many


def fitted(tested: Tested, bytes_max: int = BYTES_MAX) -> Tested:
    """`tested` in at most `bytes_max` bytes of msgpack."""
    tested = msgspec.structs.replace(
        tested, says=tested.says[:SAYS_CHARACTERS_MAX], checks=tuple(_cut(each) for each in tested.checks)
    )
    whole = len(tested.checks)
    for shorten in (_wordless, _compared_only, _not_passed_only):
        if _weight(tested) <= bytes_max:
            break
        kept = tuple(short for each in tested.checks if (short := shorten(each)) is not None)
        tested = msgspec.structs.replace(tested, checks=kept)
    if _weight(tested) > bytes_max:
        tested = msgspec.structs.replace(tested, checks=tested.checks[:_KEPT_MAX])
    if missing := whole - len(tested.checks):
        tested = msgspec.structs.replace(tested, says=f"{tested.says} ({missing} results left out)")
    return tested


def _weight(tested: Tested) -> int:
    return len(msgspec.msgpack.encode(tested))


def _cut(result: CheckResult) -> CheckResult:
    return msgspec.structs.replace(result, says=result.says[:SAYS_CHARACTERS_MAX])


def _wordless(result: CheckResult) -> CheckResult:
    return msgspec.structs.replace(result, says="") if result.verdict is Verdict.PASSED else result


def _compared_only(result: CheckResult) -> CheckResult | None:
    return result if result.verdict is not Verdict.PASSED or result.digest else None


def _not_passed_only(result: CheckResult) -> CheckResult | None:
    return result if result.verdict is not Verdict.PASSED else None
