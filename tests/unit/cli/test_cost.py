"""`holdfast cost`: the ledgers by a key, as a table and as files."""

import json
from pathlib import Path

import msgspec
import pytest

from holdfast.api.errors import Damaged, InvalidInput
from holdfast.api.ledger import VERSION, Entry, LedgerReport, Row
from holdfast.cli.commands.cost import By, cost_csv, cost_table, cost_text
from holdfast.cli.ledgerfile import read_ledger, write_ledger
from holdfast.cli.main import answer

HOUR, EURO = 3_600_000_000, 1_000_000_000
ENTRIES = (
    Entry(Row.LOADING, "earlier", HOUR, 2 * EURO),
    Entry(Row.PRODUCTIVE, "2026-01-31", 6 * HOUR, 12 * EURO),
    Entry(Row.DETECTING, "2026-02-01", HOUR, 2 * EURO, "inc-0001", "Hang", "node-1"),
    Entry(Row.SLOW, "2026-02-01", 2 * HOUR, 4 * EURO, "inc-0002", "Straggler", "node-2"),
)
REPORT = LedgerReport("team/run", 1.0, 10 * HOUR, 20 * EURO, ENTRIES, "EUR", team="vision")
OTHER = LedgerReport("team/old", 1.0, HOUR, 0, (Entry(Row.LOADING, "2026-01-31", HOUR),))


def test_every_key_tells_all_of_it_and_blames_whom_it_knows() -> None:
    for by in By:
        found = cost_table((REPORT,), by)
        assert sum(each.gpu_hours for each in found.lines) == 10.0
        assert [(each.gpu_hours, each.money) for each in found.totals] == [(10.0, 20.0)]
    assert [each.key for each in cost_table((REPORT,), By.PHASE).lines] == [
        "Productive",
        "Slow",
        "Detecting",
        "Loading",
    ]
    assert [each.key for each in cost_table((REPORT,), By.DAY).lines] == ["earlier", "2026-01-31", "2026-02-01"]
    assert [each.key for each in cost_table((REPORT,), By.NODE).lines] == ["node-2", "node-1", "-"]
    assert [each.key for each in cost_table((REPORT,), By.CAUSE).lines] == ["Straggler", "Hang", "-"]


def test_jobs_are_added_up_but_not_their_currencies() -> None:
    found = cost_table((REPORT, OTHER), By.TEAM)
    assert [(each.key, each.gpu_hours, each.money) for each in found.lines] == [
        ("vision", 10.0, 20.0),
        ("-", 1.0, None),
    ]
    assert [each.currency for each in found.totals] == ["EUR", ""]
    assert cost_table((), By.JOB).lines == ()


def test_it_is_written_for_people_and_for_spreadsheets() -> None:
    found = cost_table((REPORT,), By.INCIDENT)
    assert cost_text(found).splitlines()[1].split() == ["inc-0002", "2.0000", "20.0%", "4.00", "EUR"]
    assert cost_csv(found).splitlines()[:2] == [
        "incident,gpu_hours,share,money,currency",
        "inc-0002,2.000000000,0.200000,4.000000000,EUR",
    ]


def test_a_ledger_is_kept_beside_checkpoints_and_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "checkpoints"
    assert write_ledger(str(place), REPORT) == str(place / "ledger.json")
    assert write_ledger(place.as_uri(), REPORT).endswith("ledger.json")
    assert [each.name for each in place.iterdir()] == ["ledger.json"]
    assert read_ledger(str(place)) == read_ledger(str(place / "ledger.json")) == REPORT
    assert answer(["cost", "--file", str(place), "--by", "job", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"][0]["gpu_hours"] == 10.0


def test_a_ledger_in_an_object_store_is_one_object() -> None:
    uri = "memory://ledgers/run"
    assert write_ledger(uri, REPORT) == f"{uri}/ledger.json"
    assert read_ledger(uri) == REPORT


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--file: .* is not accepted"):
        read_ledger(str(tmp_path / "nothing"))
    file = tmp_path / "ledger.json"
    file.write_text("{}")
    with pytest.raises(Damaged, match="no ledger"):
        read_ledger(str(tmp_path))
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(REPORT, version=VERSION + 1)))
    with pytest.raises(Damaged, match="version 2"):
        read_ledger(str(tmp_path))
