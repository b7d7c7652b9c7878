"""Every command of the tutorials is run here, unless its page says that another test runs it, or why none can.

import sys
from pathlib import Path

import pytest
from patience import patient
from tutorial import read_page, run_page

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
WITHIN_S = patient(120.0)
# Pages whose commands need more than a shell: a test of their own layer runs them.
ELSEWHERE = {
    "kubernetes": "tests/integration/kubectl/test_kubectl_plugin.py"
    "::test_the_tutorials_commands_do_what_its_page_shows"
}

pytestmark = pytest.mark.usefixtures("warm_runs")


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "path", [pytest.param(path, id=path.stem) for path in PAGES if path.stem not in ELSEWHERE]
)
def test_every_command_of_a_tutorial_does_what_its_page_shows(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    programs = Path(sys.executable).parent
    import os

    run_page(read_page(path), folder, {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}, WITHIN_S)
