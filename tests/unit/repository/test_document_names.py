"""A document that names a module, or links to a file, names one that is there."""

import re
from pathlib import Path

from parts import PARTS

ROOT = Path(__file__).parents[3]
# A decision is of its time; what it names may be gone.
DOCUMENTS = [
    path
    for folder in (
        "docs",
        *PARTS,
        "helm",
    )
    for path in sorted((ROOT / folder).rglob("*.md"))
    if "adr" not in path.parts
] + [ROOT / "README.md"]
# These tell a story function by function.
STORIES = [ROOT / "docs" / "data-flow.md", ROOT / "docs" / "architecture.md"]
USERS = {"train.py", "script.py"}  # what users call theirs
OWN = re.compile(r"title=\"([\w-]+\.py)\"")  # a file that the document itself shows


def test_every_module_that_a_document_names_is_there() -> None:
    parts = (
        *PARTS,
        "bench",
        "tests",
        "helm",
        "images",
        "examples",
        "release",
    )
    there = {path.name for part in parts for path in (ROOT / part).rglob("*.py")} | USERS
    missing = []
    for path in DOCUMENTS:
        text = path.read_text()
        named = set(re.findall(r"[\w-]+\.py\b", text)) - set(OWN.findall(text)) - there
        missing += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(named)]
    assert missing == []


def test_every_function_that_a_story_names_is_where_it_says() -> None:
    modules = [path for part in PARTS for path in (ROOT / part).rglob("*.py")]
    missing = []
    for story in STORIES:
        for module, name in re.findall(r"`([a-z_]+)\.([a-z_]+)`", story.read_text()):
            places = [path for path in modules if module in (path.stem, path.parent.name)]
            is_there = any(re.search(rf"\b(def|class) {name}\b", path.read_text()) for path in places)
            missing += [] if is_there or name == "py" else [f"{story.name}: {module}.{name}"]
    assert missing == []


def test_every_link_of_a_document_leads_somewhere() -> None:
    links = {
        (path, to) for path in DOCUMENTS for to in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", path.read_text())
    }
    assert sorted(f"{path.relative_to(ROOT)}: {to}" for path, to in links if not (path.parent / to).exists()) == []
