"""The last step a worker had completed when it ended, from the rank record it leaves behind."""

from pathlib import Path

from holdfast.api.rankrecord import SEQUENCE, STEP_SEQUENCE_OFFSET, UNKNOWN_INT, check_header, unpack_step


def last_completed(record: Path) -> tuple[int, int] | None:
    """The (round, step) in `record`, None when Unknown: no record, none completed, or killed while writing."""
    try:
        raw = record.read_bytes()
        if check_header(raw) is not None or SEQUENCE.unpack_from(raw, STEP_SEQUENCE_OFFSET)[0] % 2:
            return None
        zone = unpack_step(raw)
    except (OSError, ValueError):
        return None
    return None if zone.step == UNKNOWN_INT else (zone.round, zone.step)
