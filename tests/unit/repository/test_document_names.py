"""A document that names a module, or links to a file, names one that is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
# A decision is of its time; what it names may be gone.
DOCUMENTS = [
    path
    for folder in (
        "docs",
        "api",
        "wire",
        "trainer",
        "checkpoint",
        "agent",
        "watchdog",
        "operator",
        "console",
        "planner",
        "integrations",
        "cli",
        "helm",
    )
    for path in sorted((ROOT / folder).rglob("*.md"))
    if "adr" not in path.parts
] + [ROOT / "README.md"]
USERS = {"train.py", "script.py"}  # what users call theirs


def test_every_module_that_a_document_names_is_there() -> None:
    parts = (
        "api",
        "wire",
        "trainer",
        "checkpoint",
        "agent",
        "watchdog",
        "operator",
        "console",
        "planner",
        "integrations",
        "cli",
        "bench",
        "tests",
        "helm",
        "images",
        "examples",
        "release",
    )
    there = {path.name for part in parts for path in (ROOT / part).rglob("*.py")} | USERS
    named = {(path, name) for path in DOCUMENTS for name in re.findall(r"[\w-]+\.py\b", path.read_text())}
    assert sorted(f"{path.relative_to(ROOT)}: {name}" for path, name in named if name not in there) == []


def test_every_link_of_a_document_leads_somewhere() -> None:
    links = {
        (path, to) for path in DOCUMENTS for to in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", path.read_text())
    }
    assert sorted(f"{path.relative_to(ROOT)}: {to}" for path, to in links if not (path.parent / to).exists()) == []
