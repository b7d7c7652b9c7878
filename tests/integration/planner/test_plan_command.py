import json
from pathlib import Path

import pytest

from holdfast.api.trainingjob import read_trainingjob
from holdfast.cli.embedded.jobfile import read_job_file
from holdfast.cli.main import answer

QUESTION = """
model: {layers: 32, hidden: 4096, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256}
cluster: {gpu: H100, gpus: 64}
training: {sequence: 8192, batch: 512}
"""
CONFIG = {
    "model_type": "gpt2",
    "n_embd": 1600,
    "n_head": 25,
    "n_layer": 48,
    "n_positions": 1024,
    "vocab_size": 50257,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "question.yaml"
    path.write_text(QUESTION)
    return path


def test_a_plan_is_a_table_of_options_what_failures_make_of_them_and_why_others_fall(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", str(file), "--tokens", "1e12", "--price", "2.5", "--top", "3"]) == 0
    options, failures, rejected = capsys.readouterr().out.split("\n\n")
    heading, *rows = options.splitlines()
    assert heading.split() == ["LAYOUT", "MEMORY", "STEP", "MFU", "TOKENS/S", "DAYS", "MONEY"]
    assert len(rows) == 3
    assert float(rows[0].split()[-1].replace(",", "")) == pytest.approx(
        float(rows[0].split()[-2]) * 24 * (64 + 8) * 2.5, rel=0.02
    )
    assert [line.split("  ")[0] for line in failures.splitlines()] == [
        "failures",
        "spare nodes",
        "checkpoint every",
        "effective share of time",
        "layouts that fit",
    ]
    assert "NVLink domain" in rejected
    assert "tensor parallelism of 16 leaves the NVLink domain of 8 GPUs" in rejected


def test_options_stand_for_a_file_and_replace_what_it_says(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    words = ["--model", str(config), "--gpu", "a100-80", "--gpus", "8", "--sequence", "1024", "--batch", "64"]
    assert answer(["plan", *words, "-o", "json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["options"][0]["layout"]["data"] == 8
    assert answer(["plan", str(file), *words, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == alone


def test_adapters_stay_beside_another_model(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    file.write_text(QUESTION.replace("{layers", "{adapter_rank: 16, layers"))
    assert answer(["plan", str(file), "--model", str(config), "--gpu", "H100", "--explain"]) == 0
    told = capsys.readouterr().out
    assert "parameters of adapters" in told
    assert "parameters = 1.557e+09" in told


def test_a_figure_is_explained_down_to_its_sources(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["plan", str(file), "--explain", "--layout", "tp=2,pp=4"]) == 0
    told = capsys.readouterr().out
    assert "pipeline bubble = " in told
    assert "(P-1)/M over 8 chunks, P 4, M 64]  https://arxiv.org/abs/2104.04473" in told
    for name in ("MFU", "tokens a second", "parameters"):
        assert f"\n{name} = " in told
    assert answer(["plan", str(file), "--explain", "--layout", "tp=2,pp=4", "-o", "json"]) == 0
    assert {"step time", "MFU"} < {each["name"] for each in json.loads(capsys.readouterr().out)}
    assert "optimizer state = " in told
    assert "checkpoint interval = " in told


def test_the_job_of_the_best_option_is_written_once(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "gpt-8b.yaml"
    words = ["plan", str(file), "--layout", "tp=2,pp=2,cp=1", "--price", "2", "--write", str(job)]
    assert answer(words) == 0
    written = read_job_file(job)
    assert written == read_trainingjob(written.model_dump(by_alias=True, exclude_none=True, mode="json"))
    assert (written.spec.parallelism.tensor, written.spec.parallelism.pipeline) == (2, 2)
    assert (written.metadata.name, written.spec.nodes.max) == ("gpt-8b", 8)
    assert answer(words) == 2
    assert "give a file that is not there yet" in capsys.readouterr().err
    assert answer([*words[:-1], str(tmp_path / "Not_A_Name.yaml")]) == 2
    assert "metadata.name" in capsys.readouterr().err
    assert not (tmp_path / "Not_A_Name.yaml").exists()


def test_failures_are_those_of_a_fleet_that_tells_its_own(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.json"
    fleet.write_text(
        '{"at": 1.0, "all": {"group": "all", "failures": 9, "gpu_hours": 1e5, "per_1000_gpu_hours": 0.09, '
        '"low": 0.04, "high": 0.17}}'
    )
    assert answer(["plan", str(file), "--fleet", str(fleet), "-o", "json"]) == 0
    # 0.09 for 1,000 GPU-hours, of 64 GPUs, for a day.
    assert json.loads(capsys.readouterr().out)["failures_a_day"] == pytest.approx(0.09 / 1000 * 64 * 24)
    for wrong in ("{}", '{"at": 1.0}', '{"at": 1.0, "all": {"group": "all", "failures": 0, "gpu_hours": 1e5}}'):
        fleet.write_text(wrong)
        assert answer(["plan", str(file), "--fleet", str(fleet)]) == 2
        assert "--fleet" in capsys.readouterr().err
    assert answer(["plan", str(file), "--fleet", str(tmp_path / "gone")]) == 2


def test_a_model_that_fits_nowhere_ends_with_one_and_the_reasons(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(QUESTION.replace("hidden: 4096", "hidden: 65536").replace("gpus: 64", "gpus: 8"))
    assert answer(["plan", str(file)]) == 1
    told = capsys.readouterr().out
    assert told.startswith("no layout fits")
    assert "memory" in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--model"),
        (["--layout", "tp=two"], "--layout"),
        (["--layout", "tq=2"], "--layout"),
        (["--gpu", "V100"], "cluster.gpu"),
        (["--gpus", "0"], "cluster.gpus"),
        (["--batch", "many"], "training"),
        (["--layout", "tp=7"], "layout: {'tensor': 7}"),
        (["--layout", "tp=2,tp=4"], "give tp once"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(
    file: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["plan", *([str(file)] if words else []), *words]) == 2
    assert says in capsys.readouterr().err
