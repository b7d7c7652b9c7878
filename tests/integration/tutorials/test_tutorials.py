"""Every command of the tutorials is run here, unless its page says what else runs it, or why nothing can.

The page about Kubernetes is run by the kubectl plugin's tests, where an API server stands already; those about
frameworks, which each worker imports, by `make bench NAME=tutorials`.
"""

import os
import sys
from pathlib import Path

import pytest
from patience import patient
from tutorial import RUN, read_page, run_page

TUTORIALS = Path(__file__).parents[3] / "docs" / "tutorials"
WITH_AN_API_SERVER = {"kubernetes"}
PAGES = [
    path
    for path in sorted(TUTORIALS.glob("*.md"))
    if path.stem not in WITH_AN_API_SERVER and RUN in read_page(path).counts()
]
WITHIN_S = patient(60.0)

pytestmark = pytest.mark.usefixtures("warm_runs")


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in PAGES])
def test_every_command_of_a_tutorial_does_what_its_page_shows(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run_page(read_page(path), folder, {"PATH": programs}, WITHIN_S)
