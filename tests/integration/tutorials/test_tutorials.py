"""Every command of the tutorials is run here, unless its page says what else runs it, or why nothing can.

The page about Kubernetes is run by the kubectl plugin's tests, where an API server stands already. A page that
`brings` a framework is run where that is installed, which `make install` does not do: its bench does, and until it
has, a run of the tests says that the page was not proved.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from patience import patient
from tutorial import RUN, RUN_BY, Page, left_to, read_page, run_page

TUTORIALS = Path(__file__).parents[3] / "docs" / "tutorials"
BENCHES = {"bench/tutorials.py::main", "bench/kueue.py::learn"}
WITH_AN_API_SERVER = {"kubernetes"}
# What takes most of its time is what each worker imports.
LONG = {"accelerate", "lightning", "nanogpt", "transformers"}
WITHIN_S = patient(75.0)
LONG_WITHIN_S = patient(150.0)
SLOW = [pytest.mark.long, pytest.mark.timeout(300)]


def pages() -> Iterator[object]:
    for path in sorted(TUTORIALS.glob("*.md")):
        page = read_page(path)
        left = {each.why for each in page.commands if each.how == RUN_BY} & BENCHES
        if path.stem in WITH_AN_API_SERVER or not (left or RUN in page.counts()):
            continue
        needs = [pytest.mark.needs(*(page.brings or ("kueue",)))] if left else []
        yield pytest.param(page, left, marks=[*needs, *SLOW * (path.stem in LONG)], id=path.stem)


@pytest.mark.parametrize(("page", "benches"), list(pages()))
def test_every_command_of_a_tutorial_does_what_its_page_shows(
    page: Page, benches: frozenset[str], tmp_path: Path, warm_parents: Mapping[str, str]
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    is_long = page.name.removesuffix(".md") in LONG
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Not where stacks are shown: what forks a warm parent for the tests would be in them.
    environment = {"PATH": programs, **({} if is_long else warm_parents)}
    run_page(left_to(page, benches), folder, environment, LONG_WITHIN_S if is_long else WITHIN_S)
