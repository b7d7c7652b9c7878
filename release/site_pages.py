"""What makes a site of docs/: its navigation, and pages for what the documents link to outside of docs/.

A hook of MkDocs (mkdocs.yml names it). A document links to code and other files of the repository by their paths,
as whoever reads it in a checkout needs it. Beside a site there is no such file, so each becomes a page, below
source/, with the file as it is; a folder becomes a list of what is in it.
Source: https://www.mkdocs.org/user-guide/configuration/#hooks
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
SOURCE = "source"
LINK = re.compile(r"(?<!!)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
REST = "Reference"  # where pages go that the navigation does not name
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".js": "javascript", ".sh": "bash"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Patterns become pages, and pages that are named nowhere are put under `REST`."""
    config.nav = navigation(config.nav or [], sorted(written(DOCS)))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Every target of a link that leaves docs/, and what those pages link to in turn, as a page of its own."""
    asked = {target for page in written(DOCS) for target in outside(DOCS / page)}
    asked |= {ROOT / place.removeprefix(f"{SOURCE}/") for place in paths(config.nav) if place.startswith(SOURCE)}
    seen: set[Path] = set()
    while asked - seen:
        target = sorted(asked - seen)[0]
        seen.add(target)
        place = page_of(target)
        if files.get_file_from_path(place) is None:
            files.append(_generated(config, place, text_of(target)))
        asked |= set(outside(target)) if target.suffix == ".md" else set()
    return files


def _generated(config: MkDocsConfig, place: str, text: str) -> File:
    return File.generated(config, place, content=text, inclusion=InclusionLevel.NOT_IN_NAV)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links by path in the repository become links between pages."""
    place = page.file.src_uri
    here = ROOT / place.removeprefix(f"{SOURCE}/") if place.startswith(f"{SOURCE}/") else DOCS / place
    if place.startswith(f"{SOURCE}/") and here.suffix != ".md":
        return markdown  # code, in which brackets and parentheses are no links
    return LINK.sub(lambda link: _leading(link, here, PurePosixPath(place).parent), markdown)


def _leading(link: re.Match[str], here: Path, folder: PurePosixPath) -> str:
    target = Path(os.path.normpath(here.parent / link[1]))
    if not target.exists():
        return link[0]  # MkDocs says that it is not there
    return f"]({os.path.relpath(page_of(target), folder)}{link[2] or ''})"


def written(docs: Path) -> Iterator[str]:
    yield from (path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))


def paths(nav: Any) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, Mapping) else nav or ():
            yield from paths(each)


def navigation(nav: Sequence[Any], there: Sequence[str]) -> list[Any]:
    """`nav` for the pages that are `there`. One that is not there stays: MkDocs refuses it."""
    named = {place for place in paths(nav) if "*" not in place}
    taken: set[str] = set()

    def made(entry: Any) -> list[Any]:
        if isinstance(entry, Mapping):
            ((title, below),) = entry.items()
            inside = [each for part in ([below] if isinstance(below, str) else below) for each in made(part)]
            return [{title: inside[0] if isinstance(below, str) else inside}]
        if "*" in entry:
            new = [each for each in there if PurePosixPath(each).match(entry) and each not in named | taken]
            taken.update(new)
            return list(new)
        return [entry]

    whole = [each for entry in nav for each in made(entry)]
    rest = [each for each in there if each not in named | taken]
    for section in whole:
        if isinstance(section, Mapping) and REST in section:
            section[REST].extend(rest)
    return whole


def outside(page: Path) -> Iterator[Path]:
    """What a document links to that is no page or picture of docs/: files elsewhere, and folders anywhere."""
    for to, _ in LINK.findall(page.read_text()):
        target = Path(os.path.normpath(page.parent / to))
        if target.is_dir() or (target.is_file() and DOCS not in target.parents):
            yield target


def page_of(target: Path) -> str:
    """Where a file or folder of the repository is in the site, as a path of Markdown below docs/."""
    if DOCS in target.parents and target.is_file():
        return target.relative_to(DOCS).as_posix()
    if DOCS in target.parents:
        index = "README.md" if (target / "README.md").is_file() else "index.md"
        return f"{target.relative_to(DOCS).as_posix()}/{index}"
    place = f"{SOURCE}/{target.relative_to(ROOT).as_posix()}"
    if target.is_dir():
        return f"{place}/index.md"
    return place if target.suffix == ".md" else f"{place}.md"


def text_of(target: Path) -> str:
    """A page with the file as it is, or with the names of a folder's files and what its README says."""
    name = target.relative_to(ROOT).as_posix()
    if target.is_dir():
        shown = sorted(each for each in target.iterdir() if not each.name.startswith((".", "__pycache__")))
        return f"{UNSEARCHED}# {name}\n\n" + "".join(f"- {_listed(each)}\n" for each in shown)
    text = target.read_text()
    if target.suffix == ".md":
        return text
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    language = LANGUAGES.get(target.suffix, "text")
    return f"{UNSEARCHED}# {target.name}\n\n`{name}`\n\n{fence}{language}\n{text}\n{fence}\n"


def _listed(path: Path) -> str:
    if DOCS in path.parents and path.suffix == ".md":
        return f"[{path.stem}]({path.name})"
    return f"`{path.name}/`" if path.is_dir() else f"`{path.name}`"
