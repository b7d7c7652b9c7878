import json
from pathlib import Path

import pytest
import torch

from holdfast.cli.main import answer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "a.pt"
    torch.save({"model": {"w": torch.ones(2, 3)}, "count": 3}, path)
    return path


def test_a_file_goes_through_every_format_and_diff_says_that_nothing_changed(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["checkpoint", "convert"]
    assert answer([*words, str(saved), str(tmp_path / "h"), "--to", "holdfast"]) == 0
    assert answer([*words, str(tmp_path / "h"), str(tmp_path / "d"), "--to", "dcp"]) == 0
    assert answer([*words, str(tmp_path / "d"), str(tmp_path / "b.pt"), "--to", "torch"]) == 0
    assert "nobody can tell whether it is intact" in capsys.readouterr().err
    assert answer(["checkpoint", "diff", str(saved), str(tmp_path / "b.pt")]) == 0
    assert capsys.readouterr().out == "2 equal, bit for bit\n"
    assert answer(["checkpoint", "verify", str(tmp_path / "h")]) == 0


def test_diff_says_what_differs_and_exits_with_one(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = torch.ones(2, 3)
    other[1, 0] = 1.25
    torch.save({"model": {"w": other}, "extra": 1}, tmp_path / "b.pt")
    words = ["checkpoint", "diff", str(saved), str(tmp_path / "b.pt")]
    assert answer(words) == 1
    assert capsys.readouterr().out.splitlines() == [
        "only in A: count",
        "only in B: extra",
        "model.w: 1 element(s) differ by up to 0.25, the first at [1, 0]",
        "0 equal, bit for bit",
    ]
    assert answer([*words, "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["differences"][0]["first"] == [1, 0]


def test_what_is_left_out_is_said(saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["checkpoint", "convert", str(saved), str(tmp_path / "m.safetensors"), "--to", "safetensors"]
    assert answer(words) == 1
    assert "these are none: count" in capsys.readouterr().err
    assert answer([*words, "--tensors-only"]) == 0
    assert "left out, as they are no tensors: count" in capsys.readouterr().err
    assert answer([*words, "--tensors-only"]) == 2
    assert "is not overwritten" in capsys.readouterr().err


def test_what_is_no_checkpoint_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["checkpoint", "diff", str(tmp_path), str(tmp_path / "away")]) == 2
    assert "name a checkpoint of Holdfast or torch.distributed.checkpoint" in capsys.readouterr().err


def test_a_step_that_is_not_in_the_source_is_never_quietly_another(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["checkpoint", "convert", str(saved), str(tmp_path / "h"), "--to", "holdfast"]) == 0
    words = ["--to", "torch", "--step", "4"]
    target = str(tmp_path / "b.pt")
    assert answer(["checkpoint", "convert", str(tmp_path / "h" / "step-00000000"), target, *words]) == 2
    assert "names step 0 already" in capsys.readouterr().err
    assert answer(["checkpoint", "convert", str(saved), target, *words]) == 2
    assert "leave the step out" in capsys.readouterr().err
    assert not (tmp_path / "b.pt").exists()


def test_an_object_store_is_no_destination(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer(["checkpoint", "convert", str(saved), "s3://bucket/run", "--to", "holdfast"]) == 2
    assert "name a path of this machine" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt"]
    assert answer(["checkpoint", "convert", str(saved), (tmp_path / "h").as_uri(), "--to", "holdfast"]) == 0
    assert answer(["checkpoint", "verify", str(tmp_path / "h")]) == 0
