"""The table of torch and Python: which cells are run, and what is said of each."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import environments
import pytest
import versions
from versions import Cell

HERE = {"3.11": Path("/usr/bin/python3.11"), "3.12": Path("/usr/bin/python3.12")}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The cells that were run, on a machine with two Pythons; each passes but the newest torch."""
    names: list[str] = []

    def tried(cell: Cell, python: Path) -> Cell:
        assert python == HERE[cell.python]
        names.append(cell.name)
        is_bad = cell.torch == "2.15.0"
        return Cell(cell.torch, cell.python, "", ("torch.gone",) if is_bad else (), "passed", 9, int(is_bad), 3.0)

    monkeypatch.setattr(versions, "tried", tried)
    monkeypatch.setattr(versions, "releases", lambda: ("2.11.0", "2.15.0"))
    monkeypatch.setattr(versions, "private_names", lambda python: [])
    monkeypatch.setattr(versions, "BUILD", tmp_path)
    monkeypatch.setattr(versions, "publish", lambda name, figures: print(*figures, sep="\n"))
    monkeypatch.setattr(environments, "pythons", lambda: HERE)
    return names


def bench(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["versions.py", *arguments])
    versions.main()


def test_every_torch_is_tried_on_every_python(
    ran: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench(monkeypatch)
    assert ran == ["2.11.0/3.11", "2.11.0/3.12", "2.15.0/3.11", "2.15.0/3.12"]
    said = capsys.readouterr().out
    assert "| 2.11.0 | 3.12 | passed | 9 passed | none | 3 |" in said
    assert "| 2.15.0 | 3.11 | passed | 9 passed, **1 failed** | torch.gone | 3 |" in said
    assert "MISSED torch 2.15.0 on Python 3.11" in said


def test_what_was_not_run_is_named_with_the_reason(
    ran: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bench(monkeypatch, "--torch", "2.16.0", "--python", "3.11", "3.12", "3.13", "--cells", "2.16.0/3.12")
    assert ran == ["2.16.0/3.12"]
    said = capsys.readouterr().out
    assert "| 2.16.0 | 3.11 | not run: not asked for |" in said
    assert "| 2.16.0 | 3.13 | not run: there is no such Python on this machine |" in said
    assert "?     torch 2.16.0 on Python 3.13" in said


def test_a_cell_that_is_not_in_the_table_is_refused(
    ran: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench(monkeypatch, "--cells", "2.11/3.11")
    assert "2.11/3.11 is not in the table: 2.11.0/3.11" in capsys.readouterr().err
    assert ran == []


def test_one_that_cannot_be_installed_was_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*given: object) -> None:
        raise subprocess.CalledProcessError(1, ("python", "-m", "pip", "--python", "there", "install"))

    monkeypatch.setattr(environments, "make", make)
    cell = versions.tried(Cell("2.15.0", "3.11"), HERE["3.11"])
    assert cell.reason.startswith("it could not be installed")
    assert cell.figure().met is None


def test_modules_with_private_names_are_those_that_the_bench_asks() -> None:
    found = {
        f"holdfast.{path.relative_to(environments.ROOT).as_posix().split('/holdfast/')[1]}"[:-3].replace("/", ".")
        for part in ("agent", "checkpoint", "trainer")
        for path in (environments.ROOT / part).rglob("*.py")
        if "\nNAMES: Final" in path.read_text() and "TorchName(" in path.read_text()
    }
    assert found == set(versions.PURPOSES)
