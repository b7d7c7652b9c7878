"""What the table of the code's shape counts."""

from pathlib import Path

import pytest
import shape

LONG = "def short(): pass\n\ndef long():\n" + "    x = 1\n" * 70


def tree(folder: Path, **modules: str) -> Path:
    for name, text in modules.items():
        path = folder / f"{name.replace('_', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def test_lengths_are_of_bodies_without_docstrings(tmp_path: Path) -> None:
    text = 'import os\n\ndef two(a):\n    """Says it."""\n    b = a\n    return b\n\ndef one(): return 1\n'
    found = shape.shape_of("it", [tree(tmp_path, only=text)])
    assert (found.modules, found.lines, found.mean) == (1, 8, 1.5)
    assert (found.per_thousand, found.imports) == (250.0, 0.125)


def test_modules_that_import_each_other_are_counted_and_those_that_hang_on_them_are_not(tmp_path: Path) -> None:
    circle = {"a": "import b", "b": "from pack import c", "pack_c": "from .. import a"}
    beside = {"uses": "import a\n", "used": LONG, "pack_d": "import used\nfrom pack.c import x\n"}
    found = shape.shape_of("it", [tree(tmp_path, **circle, **beside)])
    assert found.circles == 3
    assert found.names[0] == ("a", "b", "pack.c")


def test_small_modules_with_one_user_are_alone(tmp_path: Path) -> None:
    users = {"first": "import small, shared, long", "second": "from shared import x"}
    found = shape.shape_of("it", [tree(tmp_path, **users, small="X = 1", shared="x = 1", long=LONG)])
    assert found.alone == 1
    assert found.names[1] == ("small",)


def test_it_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        shape.main(["--help"])
    assert ended.value.code == 0
    assert "PATH" in capsys.readouterr().out


def test_a_path_without_modules_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        shape.main([str(tmp_path / "nowhere")])
    assert "no folder with Python files" in capsys.readouterr().err
