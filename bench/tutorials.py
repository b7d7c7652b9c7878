"""How long each tutorial takes: from the first command that it shows to the last, against five minutes.

    make bench NAME=tutorials [ARGS="transformers"]

It also runs what pages leave to this bench (`run by: bench/tutorials.py::main`), because an installation for
development lacks their framework. A page that does something else than it shows ends the bench with 1; one
whose packages (`brings`) cannot be installed (`brought/packages.py`) is not measured, and it is said why.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from brought.packages import installed, on_path
from figure import Figure, measured, publish, unmeasured

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "servers"))

from tutorial import Page, TutorialFailed, left_to, read_page, run_page  # noqa: E402

TUTORIALS: Final = ROOT / "docs" / "tutorials"
WITH_A_CLUSTER: Final = {"kubernetes", "kueue"}  # whose commands are for an API server
HERE: Final = "bench/tutorials.py::main"
LIMIT_S: Final = 300.0
PATIENCE_S: Final = 1200.0


def took_s(page: Page, environment: Mapping[str, str]) -> float:
    """Raises TutorialFailed."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.environ['PATH'])}"
    environment = {**environment, "PATH": programs, "HOLDFAST_CONSOLE": "0"}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as scratch:
        folder = Path(scratch) / "here"
        folder.mkdir()
        began = time.perf_counter()
        run_page(left_to(page, {HERE}), folder, environment, PATIENCE_S)
        return time.perf_counter() - began


def main() -> None:
    names = sorted(path.stem for path in TUTORIALS.glob("*.md") if path.stem not in WITH_A_CLUSTER)
    parser = argparse.ArgumentParser(description="Run the tutorials.")
    parser.add_argument("name", nargs="*", choices=[*names, []], help="only these")
    figures: list[Figure] = []
    failed = []
    for name in parser.parse_args().name or names:
        said = f"tutorial {name}: from its first command to its last"
        page, environment = read_page(TUTORIALS / f"{name}.md"), dict[str, str]()
        if page.brings:
            folder, lacking = installed()
            environment = on_path(folder)
            if reasons := [f"{each}: {lacking[each]}" for each in page.brings if each in lacking]:
                figures.append(unmeasured(said, unit="s", target=1.0, reason="; ".join(reasons)))
                continue
        try:
            took = took_s(page, environment)
        except TutorialFailed as error:
            failed.append(str(error))
            figures.append(unmeasured(said, unit="s", target=1.0, reason="it did not do what it shows"))
            continue
        figures.append(measured(said, ours=[took], other=[LIMIT_S], unit="s", target=1.0))
    if failed:
        sys.exit("\n\n".join([*map(str, figures), *failed]))
    publish("tutorials", figures)


if __name__ == "__main__":
    main()
