"""The spool on disk: in order, bounded, and whole after a writer that died."""

from pathlib import Path

import pytest

from holdfast.console.trackers.records import Ended, Mark, Record, Row
from holdfast.console.trackers.spool import SpoolReader, SpoolWriter

ROOMY = 1 << 20


def row(step: int) -> Row:
    return Row(step, 1.0, {"loss": 0.5}, 1, 0)


def fill(writer: SpoolWriter, first: int, count: int) -> None:
    for step in range(first, first + count):
        writer.append((row(step),), Mark(step, None, b"m"))


def steps(records: list[tuple[int, Record]]) -> list[int]:
    return [record.step for _, record in records if isinstance(record, Row)]


def test_records_come_in_order_with_their_numbers_and_nan_stays_what_it_is(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, bytes_max=ROOMY)
    odd = Row(1, 1.0, {"loss": float("nan"), "inf": float("inf")}, 1, None)
    writer.append((odd, Ended(2.0, succeeded=True, reason="done")), Mark(1, None))
    reader = SpoolReader(tmp_path, 0)
    found = reader.read()
    assert [number for number, _ in found] == [0, 1, 2]
    assert repr(found[0][1]) == repr(odd)
    assert reader.read() == []
    writer.append((row(2),), Mark(2, None))
    assert steps(reader.read()) == [2]
    assert steps(SpoolReader(tmp_path, 3).read()) == [2]


def test_segments_that_were_taken_go_and_others_stay(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, bytes_max=ROOMY, segment_bytes=300)
    fill(writer, 1, 40)
    before = sorted(path.name for path in tmp_path.iterdir())
    writer.trim(40)
    after = sorted(path.name for path in tmp_path.iterdir())
    assert 1 < len(after) < len(before)
    reader = SpoolReader(tmp_path, 40)
    assert steps(reader.read()) == list(range(21, 41))
    assert reader.lost == 0


def test_what_does_not_fit_goes_the_oldest_first_and_the_reader_learns_how_much(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, bytes_max=2000, segment_bytes=400)
    fill(writer, 1, 100)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2000
    reader = SpoolReader(tmp_path, 0)
    found = steps(reader.read())
    assert found == list(range(found[0], 101))
    assert found[0] > 1
    assert reader.lost == 2 * (found[0] - 1)


def test_a_reader_that_is_overtaken_while_it_reads_goes_on_with_what_is_there(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, bytes_max=2000, segment_bytes=400)
    fill(writer, 1, 3)
    reader = SpoolReader(tmp_path, 0)
    assert steps(reader.read()) == [1, 2, 3]
    fill(writer, 4, 100)
    found = steps(reader.read())
    assert found[-1] == 103
    assert reader.lost == 2 * (found[0] - 4)


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_what_is_torn_at_the_end_is_cut_off_and_written_over(tmp_path: Path, cut: int) -> None:
    fill(SpoolWriter(tmp_path, bytes_max=ROOMY), 1, 3)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-cut])
    writer = SpoolWriter(tmp_path, bytes_max=ROOMY)
    assert writer.mark is not None
    assert writer.mark.heard == 2
    before = writer.next
    writer.append((row(9),), Mark(9, None))
    found = SpoolReader(tmp_path, 0).read()
    assert steps(found)[-1] == 9
    assert [number for number, _ in found] == list(range(before + 2))


def test_a_bit_that_flipped_ends_what_is_read_of_a_segment(tmp_path: Path) -> None:
    fill(SpoolWriter(tmp_path, bytes_max=ROOMY), 1, 3)
    (path,) = tmp_path.iterdir()
    damaged = bytearray(path.read_bytes())
    damaged[damaged.rfind(b"loss")] ^= 4
    path.write_bytes(damaged)
    assert steps(SpoolReader(tmp_path, 0).read()) == [1, 2]


def test_a_writer_that_begins_anew_goes_on_in_the_same_spool(tmp_path: Path) -> None:
    fill(SpoolWriter(tmp_path, bytes_max=ROOMY, segment_bytes=200), 1, 10)
    writer = SpoolWriter(tmp_path, bytes_max=ROOMY, segment_bytes=200)
    assert writer.mark == Mark(10, None, b"m")
    fill(writer, 11, 10)
    assert steps(SpoolReader(tmp_path, 0).read()) == list(range(1, 21))
