"""docs/runbook-checks.md, and the lists in alerts' pages, say what is checked. This file writes them anew."""

from collections.abc import Iterator
from pathlib import Path

from holdfast.console.runbook.document import BEGIN, OF_THE_INSTALLATION, SYMPTOM_OF_ALERT, page, renewed

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "runbook-checks.md"
ALERTS = sorted((DOCS / "runbooks").glob("*.md"))


def written() -> Iterator[tuple[Path, str]]:
    """Every page that is written, with what it should say."""
    yield PAGE, page()
    for path in ALERTS:
        if path.stem in SYMPTOM_OF_ALERT:
            yield path, renewed(path.stem, path.read_text())


def test_the_pages_are_in_step() -> None:
    assert [path.name for path, text in written() if path.read_text() != text] == [], "run this file"


def test_every_alert_has_a_symptom_or_is_about_the_installation() -> None:
    assert {path.stem for path in ALERTS} == SYMPTOM_OF_ALERT.keys() | OF_THE_INSTALLATION
    assert not SYMPTOM_OF_ALERT.keys() & OF_THE_INSTALLATION
    for path in ALERTS:
        text = path.read_text()
        assert (BEGIN in text) == (path.stem in SYMPTOM_OF_ALERT), path.stem
        if path.stem in SYMPTOM_OF_ALERT:
            assert f"kubectl holdfast runbook {SYMPTOM_OF_ALERT[path.stem]} " in text


def test_what_stands_around_the_list_stays() -> None:
    before = "# HoldfastGpuXid\n\n## How to check\n\n```console\n$ ls\n```\n"
    once = renewed("HoldfastGpuXid", before)
    assert renewed("HoldfastGpuXid", once) == once
    assert once.startswith("# HoldfastGpuXid\n\n## How to check\n\n<!-- checks")
    assert once.endswith("<!-- end of checks -->\n\n```console\n$ ls\n```\n")


if __name__ == "__main__":
    for path, text in written():
        path.write_text(text)
