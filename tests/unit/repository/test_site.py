"""The documentation builds as a site without a warning, whole, with links that lead somewhere, from one host."""

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
SITE_BUILDS_WITHIN_S = 300.0


class References(HTMLParser):
    """What a page loads by itself (`loaded`), what it leads to (`links`), and its places (`ids`)."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.ids.add(said.get("id", ""))
        if tag == "a":
            self.links.append(said.get("href", ""))
        elif tag == "link" and said.get("rel") not in ("prev", "next", "canonical"):
            self.loaded.append(said.get("href", ""))
        else:
            self.loaded.extend(said[name] for name in ("src", "data", "poster") if said.get(name))


def build(into: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(into)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=SITE_BUILDS_WITHIN_S,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    ended = build(into)
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, ""), ended.stderr
    return into


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, References]:
    return {path: References(path.read_text()) for path in site.rglob("*.html")}


def test_every_document_is_reached_from_the_first_page(site: Path, pages: dict[Path, References]) -> None:
    reached, left = set[Path](), [site / "index.html"]
    while left:
        page = left.pop()
        if page in reached or page not in pages:
            continue
        reached.add(page)
        left.extend((page.parent / link.partition("#")[0]).resolve() for link in pages[page].links)
    there = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    there = {path.with_name("index.html") if path.stem == "README" else path for path in there}
    assert there <= {page.relative_to(site) for page in reached}


def test_every_link_leads_to_a_place_that_is_there(site: Path, pages: dict[Path, References]) -> None:
    def leads_nowhere(page: Path, link: str) -> bool:
        to, _, place = link.partition("#")
        target = (page.parent / to).resolve() if to else page
        if target not in pages:
            return not target.is_file()
        return bool(place) and place not in pages[target].ids

    wrong = {
        f"{page.relative_to(site)}: {link}"
        for page, found in pages.items()
        if page.name != "404.html"  # it is served anywhere, so its links are those of the site's root
        for link in found.links
        if link and not re.match(r"\w+:", link) and leads_nowhere(page, link)
    }
    assert wrong == set()


def test_a_page_loads_nothing_from_another_host(site: Path, pages: dict[Path, References]) -> None:
    from_afar = {
        f"{page.relative_to(site)}: {each}"
        for page, found in pages.items()
        for each in found.loaded
        if re.match(r"(\w+:)?//", each)
    }
    assert from_afar == set()
    for style in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", style.read_text()), style
    # The theme fetches this one only for diagrams of that kind.
    assert not [path for path in DOCS.rglob("*.md") if "```mermaid" in path.read_text()]


def test_its_search_finds_what_documents_say_and_no_code(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert [each["title"] for each in index if "should_skip" in each["text"]]
    assert {"Detectors: what counts as a fault, and when it is over", "Guide"} <= {each["title"] for each in index}
    assert not [each["location"] for each in index if each["location"].startswith("source/trainer")]


def test_a_page_that_is_named_nowhere_has_a_place_and_one_that_is_missing_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "release"))
    from site_pages import navigation

    nav = ["index.md", {"Use": ["b.md", "u/*.md"]}, {"Reference": ["lost.md"]}]
    made = navigation(nav, ["b.md", "index.md", "new.md", "u/1.md", "u/2.md"])
    assert made == ["index.md", {"Use": ["b.md", "u/1.md", "u/2.md"]}, {"Reference": ["lost.md", "new.md"]}]


def test_code_becomes_a_page_that_ends_where_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "release"))
    import site_pages

    text = site_pages.text_of(Path(__file__))
    fence = "`" * 4
    assert "```mermaid" in text
    assert text.count(f"\n{fence}") == 2, "a fence of the file would end the page's own"
    assert site_pages.page_of(ROOT / "docs" / "adr") == "adr/README.md"
    assert site_pages.page_of(ROOT / "docs" / "runbooks") == "runbooks/index.md"
    assert site_pages.page_of(ROOT / "helm" / "holdfast" / "README.md") == "source/helm/holdfast/README.md"
    assert site_pages.page_of(ROOT / "operator") == "source/operator/index.md"
