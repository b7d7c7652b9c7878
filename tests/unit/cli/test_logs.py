"""`holdfast logs`: of a run on this machine, of pods, and of what is gone."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakekubernetes import JOBS, PROXY, FakeKubernetes, a_job, fake_kubernetes, refusal
from fakewatchdog import fake_watchdog, lay_out
from wireobjects import a_rank, an_incident, an_output

from holdfast.agent.launch.logs import EarlierRank, WorkerRun, trim
from holdfast.cli import locallogs
from holdfast.cli.main import answer
from holdfast.cli.target import Program

PODS = "/api/v1/namespaces/research/pods"
LIVE = f"{PROXY}/v1/jobs/research/gpt"
NOBODY = str(2**22 + 1)


def a_run(root: Path, *runs: WorkerRun) -> list[str]:
    """The state directory of a run that is over, whose launchers registered `runs`; the flag that names it."""
    directory = lay_out(root, port=1)
    directory.lock_file.write_text(NOBODY)
    directory.logs.mkdir(exist_ok=True)
    for member in {run.member for run in runs}:
        mine = [run for run in runs if run.member == member]
        (directory.logs / f"{member}.workers.json").write_bytes(msgspec.json.encode(mine))
    for run in runs:
        with (directory.logs / run.file).open("a") as log:
            log.write("".join(f"{run.pid} line {number}\n" for number in range(20)))
    return ["--state-dir", str(root)]


def worker(pid: int, rank: int, at: float, node: str = "n1", **fields: Any) -> WorkerRun:
    known = {"file": f"{pid}.log", "offset": 0, "ranked_at": at, **fields}
    return WorkerRun(
        rank=rank, node=node, member=node, local_rank=0, pid=pid, round=2, started_at=at, **known
    )  # fmt: skip


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_one_rank_is_shown_whole_and_several_with_their_ranks_and_last_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = a_run(tmp_path, worker(10, 0, 1.0), worker(11, 1, 1.0, "n2", ended_at=5.0, ended_with="signal 9"))
    assert answer(["logs", "--rank", "1", *flags]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [f"11 line {number}" for number in range(20)]
    assert said.err.startswith("holdfast: rank 1 on n2, pid 11, started ")
    assert said.err.endswith("with signal 9\n")
    assert answer(["logs", *flags]) == 0
    assert lines(capsys) == [f"[rank{rank}] 1{rank} line {number}" for rank in (0, 1) for number in range(10, 20)]
    assert answer(["logs", "--node", "n2", "--tail", "1", *flags]) == 0
    assert lines(capsys) == ["11 line 19"]
    assert answer(["logs", "--rank", "0", "--tail", "0", *flags]) == 0
    assert lines(capsys) == []


def test_the_previous_one_is_the_process_before_the_last_restart_also_of_a_node_that_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = (worker(10, 1, 1.0, "n1"), worker(11, 1, 2.0, "n2"), worker(12, 0, 1.0, "n3"))
    flags = a_run(tmp_path, *runs)
    assert answer(["logs", "--rank", "1", "--tail", "1", *flags]) == 0
    assert lines(capsys) == ["11 line 19"]
    assert answer(["logs", "--rank", "1", "--previous", "--tail", "1", *flags]) == 0
    assert lines(capsys) == ["10 line 19"]
    assert answer(["logs", "--previous", "--tail", "1", *flags]) == 0
    assert lines(capsys) == ["10 line 19"], "rank 0 was never started again"
    assert answer(["logs", "--rank", "0", "--previous", *flags]) == 3
    assert "no worker process before the newest one is known of rank 0" in capsys.readouterr().err


def test_a_worker_that_went_on_as_another_rank_is_found_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 1 died with its node; who was rank 2 became rank 1."""
    moved = worker(11, 1, 1.0, "n2", ranked_at=9.0, earlier=(EarlierRank(2, 1.0),))
    flags = a_run(tmp_path, worker(10, 1, 1.0, "n1"), moved)
    assert answer(["logs", "--rank", "1", "--tail", "1", *flags]) == 0
    assert lines(capsys) == ["11 line 19"]
    assert answer(["logs", "--rank", "1", "--previous", "--tail", "1", *flags]) == 0
    assert lines(capsys) == ["10 line 19"]
    assert answer(["logs", "--rank", "2", "--tail", "1", *flags]) == 0
    said = capsys.readouterr()
    assert (said.out, "rank 1 (before: 2) on n2" in said.err) == ("11 line 19\n", True)
    assert answer(["logs", "--rank", "3", *flags]) == 2
    assert "there are logs of ranks 1" in capsys.readouterr().err
    assert answer(["logs", "--node", "n9", *flags]) == 2
    assert "there are logs of nodes n1, n2" in capsys.readouterr().err


def test_two_processes_in_one_file_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = worker(10, 0, 1.0, file="one.log")
    size = sum(len(f"10 line {number}\n") for number in range(20))
    flags = a_run(tmp_path, first, worker(11, 0, 2.0, file="one.log", offset=size))
    assert answer(["logs", "--rank", "0", *flags]) == 0
    assert lines(capsys) == [f"11 line {number}" for number in range(20)]
    assert answer(["logs", "--rank", "0", "--previous", *flags]) == 0
    assert lines(capsys) == [f"10 line {number}" for number in range(20)]


def test_what_was_given_back_to_the_file_system_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = a_run(tmp_path, worker(10, 0, 1.0))
    path = tmp_path / "logs" / "10.log"
    path.write_text("".join(f"{number:09}\n" for number in range(20_000)))
    trim(path, kept_bytes=50_000)
    assert answer(["logs", "--rank", "0", *flags]) == 0
    said = capsys.readouterr()
    shown = said.out.splitlines()
    assert shown[-1] == "000019999"
    assert {len(line) for line in shown} == {9}, "no half a line, and nothing of the hole"
    if len(shown) < 20_000:
        assert "bytes of rank 0 are no longer kept" in said.err


def test_since_passes_over_workers_that_wrote_nothing_since(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = a_run(tmp_path, worker(10, 0, 1.0), worker(11, 1, 1.0))
    os.utime(tmp_path / "logs" / "10.log", (1.0, 1.0))
    assert answer(["logs", "--since", "10m", "--tail", "1", *flags]) == 0
    assert lines(capsys) == ["[rank1] 11 line 19"]
    assert answer(["logs", "--since", "10", *flags]) == 2
    assert "write a number with a unit" in capsys.readouterr().err


def test_following_a_run_that_is_over_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = a_run(tmp_path, worker(10, 0, 1.0))
    with (tmp_path / "logs" / "10.log").open("a") as log:
        log.write("no end of line")
    assert answer(["logs", "-f", "--rank", "0", "--tail", "2", *flags]) == 0
    assert lines(capsys) == ["10 line 18", "10 line 19", "no end of line"]


def test_following_goes_over_to_the_process_that_takes_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = a_run(tmp_path, worker(10, 0, 1.0))
    looks = iter([False, False, True])

    def look(_: object) -> bool:
        """Between two looks, the worker writes, then another one takes over."""
        over = next(looks)
        if over:
            a_run(tmp_path, worker(11, 0, 2.0, "n2"))
        else:
            with (tmp_path / "logs" / "10.log").open("a") as log:
                log.write("more")
        return over

    monkeypatch.setattr(locallogs, "is_over", look)
    monkeypatch.setattr(locallogs, "POLL_INTERVAL_S", 0.0)
    assert answer(["logs", "-f", "--rank", "0", "--tail", "1", *flags]) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == ["10 line 19", "moremore", *(f"11 line {number}" for number in range(20))]
    assert "rank 0 on n2, pid 11" in said.err


def test_a_run_without_workers_has_no_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(tmp_path, port=1)
    assert answer(["logs", "--state-dir", str(tmp_path)]) == 3
    assert "there are no logs of workers in" in capsys.readouterr().err


POD_LOG = """\
the launcher's own line
[rank0]: holdfast: a worker process begins, pid 7, round 2
[rank1]: holdfast: a worker process begins, pid 8, round 2
[rank0]: one
[rank1]: other
[rank1]: [rank9]: not a rank of ours
[rank1]: holdfast: a worker process begins, pid 9, round 3
[rank1]: again
[rank0]: two
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    """A job of two pods: ranks 0 and 1 in gpt-0, rank 2 in gpt-1."""
    with fake_kubernetes(tmp_path) as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
        monkeypatch.chdir(tmp_path)
        containers = [{"name": "sidecar"}, {"name": "trainer"}]
        job = {**a_job(), "spec": {"template": {"spec": {"containers": containers}}}}
        fake.answers[f"GET {JOBS}/gpt"] = (200, job)
        ranks = [a_rank(0, member="gpt-0", node="n1"), a_rank(1, member="gpt-0", node="n1")]
        fake.answers[f"GET {LIVE}/ranks"] = (200, [*ranks, a_rank(2, member="gpt-1", node="n2")])
        fake.answers[f"GET {LIVE}/incidents"] = (200, [])
        fake.answers[f"GET {LIVE}/logs"] = (200, [])
        fake.answers[f"GET {PODS}/gpt-0/log"] = (200, POD_LOG.encode())
        fake.answers[f"GET {PODS}/gpt-1/log"] = (200, b"[rank2]: alone")
        yield fake


def ask(*arguments: str) -> int:
    return answer(["logs", "gpt", *arguments], Program.KUBECTL)


def test_the_log_of_a_pod_is_told_apart_by_rank_and_process(
    cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("--rank", "1") == 0
    assert lines(capsys) == ["again"]
    assert cluster.asked[-1].path == f"{PODS}/gpt-0/log?container=trainer"
    assert ask("--rank", "1", "--previous") == 0
    assert lines(capsys) == ["other", "[rank9]: not a rank of ours"]
    assert ask("--tail", "1", "--since", "90s") == 0
    assert lines(capsys) == ["[rank0] two", "[rank1] again", "[rank2] alone"]
    assert cluster.asked[-1].path.endswith("&sinceSeconds=90")
    assert ask("--node", "n2") == 0
    assert lines(capsys) == ["alone"]
    assert ask("--rank", "7") == 2
    assert "there are logs of ranks 0, 1, 2" in capsys.readouterr().err


def test_one_pod_can_be_followed(cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("-f", "--node", "n1", "--tail", "5") == 0
    assert lines(capsys)[-1] == "[rank0] two"
    assert "follow=true" in cluster.asked[-1].path
    assert "tailLines=10" in cluster.asked[-1].path, "five of each of its two ranks"
    assert ask("-f") == 2
    assert "name one with --rank or --node" in capsys.readouterr().err


def test_of_a_pod_that_is_gone_the_last_words_are_told(
    cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers[f"GET {PODS}/gpt-1/log"] = refusal(404, "NotFound", 'pods "gpt-1" not found', "pods", "gpt-1")
    assert ask("--rank", "2") == 3
    assert "nothing is kept of what the newest process of rank 2 wrote" in capsys.readouterr().err
    failed = an_incident(
        culprit=msgspec.structs.replace(an_incident().culprit, rank=2), error="Traceback\nit broke"
    )
    cluster.answers[f"GET {LIVE}/incidents"] = (200, [failed])
    assert ask("--rank", "2", "--tail", "1") == 0
    said = capsys.readouterr()
    assert said.out == "it broke\n"
    assert "the pod gpt-1 is gone, and its log with it" in said.err
    assert "kept of the worker of rank 2 that failed at" in said.err
    assert ask("--tail", "1") == 0
    assert lines(capsys) == ["[rank0] two", "[rank1] again", "[rank2] it broke"]


def test_of_a_pod_that_is_gone_the_end_of_its_log_is_shown_and_said_to_be_that(
    cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers[f"GET {PODS}/gpt-1/log"] = refusal(404, "NotFound", 'pods "gpt-1" not found', "pods", "gpt-1")
    earlier = an_output(2, round=1, member="gpt-0", node="n1", tail="earlier", ended_with="")
    cluster.answers[f"GET {LIVE}/logs"] = (200, [an_output(2, round=4, omitted_bytes=99), earlier])
    assert ask("--rank", "2") == 0
    said = capsys.readouterr()
    assert said.out == "one\ntwo\n"
    assert "the pod gpt-1 is gone, and its log with it" in said.err
    assert "rank 2 in gpt-1 on n2, pid 7, started " in said.err
    assert "with signal 9: the watchdog keeps the last 8 bytes, 99 before them are not kept of what" in said.err
    assert cluster.asked[-1].path == f"{LIVE}/logs?rank=2"
    assert ask("--rank", "2", "--previous") == 0
    said = capsys.readouterr()
    assert said.out == "earlier\n"
    assert "with its launcher, or later: the watchdog keeps all of what it wrote" in said.err
    assert ask("--tail", "1") == 0
    assert lines(capsys) == ["[rank0] two", "[rank1] again", "[rank2] two"]
    assert ask("--rank", "2", "--since", "10m") == 3, "it ended long ago"


def test_of_a_node_that_vanished_only_what_was_sent_before_is_there_and_is_not_taken_for_more(
    cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers[f"GET {PODS}/gpt-1/log"] = refusal(404, "NotFound", 'pods "gpt-1" not found', "pods", "gpt-1")
    cluster.answers[f"GET {LIVE}/logs"] = (200, [an_output(2, member="gpt-0")])
    assert ask("--rank", "2") == 3
    said = capsys.readouterr().err
    assert "nothing is kept of what the newest process of rank 2 wrote" in said
    assert "what an earlier process of it wrote is kept: --previous shows it" in said
    assert ask("--rank", "2", "--previous") == 0
    assert lines(capsys) == ["one", "two"]
    cluster.answers[f"GET {LIVE}/logs"] = (200, [])
    assert ask("--rank", "2") == 3
    assert "vanishes without a word leaves only what its launcher had sent before" in capsys.readouterr().err


def test_the_process_before_the_first_of_a_living_pod_is_the_one_of_the_pod_that_is_gone(
    cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    log = b"[rank2]: holdfast: a worker process begins, pid 7, round 4\n[rank2]: new"
    cluster.answers[f"GET {PODS}/gpt-1/log"] = (200, log)
    ended_here = an_output(2, round=4, tail="new")
    before = an_output(2, round=3, member="gpt-0", tail="old")
    cluster.answers[f"GET {LIVE}/logs"] = (200, [ended_here, before])
    assert ask("--rank", "2") == 0
    assert lines(capsys) == ["new"]
    assert ask("--rank", "2", "--previous") == 0
    assert lines(capsys) == ["old"]


def test_ranks_and_nodes_that_the_newest_round_does_not_have_are_asked_of_the_watchdog(
    cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = [an_output(9, node="n9"), an_output(9, node="n9", round=1, tail="old"), an_output(8, node="n9")]
    cluster.answers[f"GET {LIVE}/logs"] = (200, kept)
    assert ask("--rank", "9") == 0
    assert lines(capsys) == ["one", "two"]
    assert ask("--rank", "9", "--previous") == 0
    assert lines(capsys) == ["old"]
    assert ask("--node", "n9", "--tail", "1") == 0
    assert lines(capsys) == ["[rank8] two", "[rank9] two"]
    assert cluster.asked[-1].path == f"{LIVE}/logs?node=n9"
    assert ask("--node", "n9", "-f") == 2
    assert ask("--node", "n7") == 2
    assert "there are logs of nodes n1, n2" in capsys.readouterr().err


def test_who_may_not_read_logs_is_told_which_right_it_needs(
    cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers[f"GET {PODS}/gpt-1/log"] = refusal(403, "Forbidden", "no")
    assert ask("--rank", "2") == 1
    assert "the right to get pods/log, which the chart's ClusterRole ...-view gives" in capsys.readouterr().err


def test_a_watchdog_alone_has_last_words_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_watchdog(tmp_path) as fake:
        fake.answers["GET incidents"] = (200, [an_incident()])
        fake.answers["GET logs"] = (200, [])
        port = msgspec.json.decode((tmp_path / "watchdog.json").read_bytes())["port"]
        by_address = ["research/gpt", "--watchdog", f"127.0.0.1:{port}", "--token-file", str(tmp_path / "token")]
        assert answer(["logs", "--rank", "1", *by_address]) == 0
        assert lines(capsys) == ["Traceback", "ValueError: bad"]
        assert answer(["logs", *by_address]) == 2
