"""Tutorials can be read as what a test runs, and nothing of one is left out without a reason that is counted."""

import os
import select
from pathlib import Path

import pytest
from tutorial import (
    NOT_RUN,
    RUN,
    RUN_BY,
    Command,
    File,
    PageWrong,
    TutorialFailed,
    missing_of,
    read_page,
    run_page,
)

ROOT = Path(__file__).parents[3]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
PAGE = """---
commands: {{run: 2, not run: 1}}
ports: [7777]
---
# Title

```yaml title="a/b.yaml"
port: 7777
```

```console
$ cat a/b.yaml \\
    && echo 1.5 s later
port: ...
...
9 ms later
```

<!-- not run: there is no such machine here at all -->
```console
$ rm -rf /
```

<!-- ends with: 3 -->
```console
$ {last}
```
"""


def page(folder: Path, *, last: str = "exit_with() { return 3; }; exit_with", text: str = PAGE) -> Path:
    file = folder / "page.md"
    file.write_text(text.format(last=last))
    return file


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in TUTORIALS])
def test_every_tutorial_is_counted_at_its_head_and_names_tests_that_are_there(path: Path) -> None:
    page = read_page(path)
    commands = page.commands
    pinned = (ROOT / "bench" / "brought" / "packages.py").read_text()
    assert all(f'"{name}": (' in pinned for name in page.brings), page.brings
    assert [each for each in commands if each.how != NOT_RUN] != []
    for each in commands:
        if each.how == RUN_BY:
            file, _, name = each.why.partition("::")
            assert f"def {name}(" in (ROOT / file).read_text(), each.why


def test_a_page_is_files_and_commands_in_order(tmp_path: Path) -> None:
    read = read_page(page(tmp_path))
    file, shown, left, last = read.steps
    assert file == File("a/b.yaml", "port: 7777\n")
    assert isinstance(shown, Command)
    assert shown.appears == ("port: ...", "9 ms later")
    assert isinstance(left, Command)
    assert (left.how, left.why) == (NOT_RUN, "there is no such machine here at all")
    assert isinstance(last, Command)
    assert last.code == 3
    assert read.counts() == {RUN: 2, NOT_RUN: 1}


def test_its_commands_are_run_in_one_shell_with_free_ports_and_what_is_started_ends(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    run_page(read_page(page(tmp_path)), folder, {}, 20.0)
    assert (folder / "a" / "b.yaml").read_text() not in ("", "port: 7777\n")
    began = "sleep 4712 & echo $! > pid; (exit 3)"
    run_page(read_page(page(tmp_path, last=began)), folder, {}, 20.0)
    assert has_ended(int((folder / "pid").read_text()))


def has_ended(pid: int) -> bool:
    """Once it has; False when it lives on."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(process, "rb", buffering=0):
        return bool(select.select([process], [], [], 20.0)[0])


@pytest.mark.parametrize(
    ("last", "within_s", "says"),
    [
        ("true", 20.0, "ended with 0, not 3"),
        ("exit 3", 20.0, "ended with nothing, not 3"),
        ("sleep 4713", 0.5, "took over 0 s"),
    ],
)
def test_a_command_that_ends_otherwise_is_told(tmp_path: Path, last: str, within_s: float, says: str) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    with pytest.raises(TutorialFailed, match=says):
        run_page(read_page(page(tmp_path, last=last)), folder, {**os.environ}, within_s)


def test_what_does_not_appear_is_told(tmp_path: Path) -> None:
    said = "   1.25s  round 2\nother\nincident 12 of node-1\n"
    assert missing_of(("0.1 s round 2", "incident ... of node-1"), said) is None
    assert missing_of(("incident 12 of node-1", "9s round 2"), said) == "9s round 2", "in their order"
    assert missing_of(("round",), said) == "round", "a whole line"
    assert missing_of(("incident 13 of node-1",), said) == "incident 13 of node-1", "only durations are any"
    folder = tmp_path / "here"
    folder.mkdir()
    wrong = page(tmp_path, text=PAGE.replace("port: ...", "harbour: ..."))
    with pytest.raises(TutorialFailed, match="this did not appear: harbour"):
        run_page(read_page(wrong), folder, {}, 20.0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (("run: 2", "run: 1"), "write `commands: {'run': 2, 'not run': 1}`"),
        (("not run: there is no such machine here at all", "not run: no"), "not run: a reason"),
        (
            ("not run: there is no such machine here at all", "skipped: there is no such machine"),
            "not run: a reason",
        ),
        (("$ rm -rf /", "rm -rf /"), "no command"),
    ],
)
def test_a_page_that_hides_something_is_refused(tmp_path: Path, wrong: tuple[str, str], says: str) -> None:
    with pytest.raises(PageWrong, match=says.replace("{", r"\{").replace("}", r"\}")):
        read_page(page(tmp_path, text=PAGE.replace(*wrong)))
