"""`kubectl holdfast` through the real kubectl, API server, RBAC, service proxy, operator and watchdog."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubectl_rig import GROUP, HOLDFAST, TEAM, Installation, Said, played_launcher, until
from patience import patient
from tutorial import read_page, run_page

from holdfast.api.errors import HoldfastError
from holdfast.api.membership import RunDescribed
from holdfast.api.runmanifest import IMAGE, RunManifest
from holdfast.cli.cluster.clustersite import ClusterSite
from holdfast.cli.rounds.rollback import ImageRollback
from holdfast.cli.target import Target

TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorials" / "kubernetes.md"
JOB = "gpt"
VIEWER, ON_CALL, STRANGER, HALF, MEMBER = "vera", "olga", "bob", "hal", "mia"
pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("kubectl"))
    try:
        installation.start()
        for user, role in ((VIEWER, "view"), (ON_CALL, "oncall"), (HALF, "view")):
            installation.grant(user, f"{HOLDFAST}-holdfast-{role}", TEAM)
        for user in (VIEWER, ON_CALL):
            installation.grant(user, "holdfast-reader", HOLDFAST, kind="Role")
        # What the cluster's own view has as well, where a controller aggregates it.
        for role in ("view", "live"):
            installation.grant(MEMBER, f"{HOLDFAST}-holdfast-{role}", TEAM)
        installation.submit(JOB)
        yield installation
    finally:
        installation.stop()


def test_a_viewer_reads_the_live_status_through_the_api_server(installed: Installation) -> None:
    said = installed.run(VIEWER, "holdfast", "status", JOB, "-n", TEAM, "-o", "json")
    assert said.code == 0, said.err
    shown = json.loads(said.out)
    assert (shown["job"], shown["source"], shown["phase"]) == (f"{TEAM}/{JOB}", "watchdog", "Pending")
    assert said.err == ""


def test_the_only_job_of_a_namespace_needs_no_name(installed: Installation) -> None:
    said = installed.run(VIEWER, "holdfast", "status", "-n", TEAM)
    assert said.code == 0, said.err
    assert said.out.startswith(f"job            {TEAM}/{JOB}\n")


def test_a_name_nobody_has_is_answered_with_those_there_are(installed: Installation) -> None:
    said = installed.run(VIEWER, "holdfast", "status", "gtp", "-n", TEAM)
    assert (said.code, said.out) == (2, "")
    assert f"job: '{TEAM}/gtp' is not accepted; the jobs of namespace {TEAM} are: {JOB}" in said.err


def test_every_read_answers(installed: Installation) -> None:
    for command in ("ranks", "nodes", "incidents"):
        said = installed.run(VIEWER, "holdfast", command, JOB, "-n", TEAM)
        assert said.code == 0, said.err
    assert installed.run(VIEWER, "holdfast", "journal", JOB, "-n", TEAM).out.split()[2] == "JobSubmitted"
    said = installed.run(VIEWER, "holdfast", "simulate", "-j", JOB, "-n", TEAM)
    assert (said.code, "the run has trained no step" in said.err) == (2, True), said
    said = installed.run(VIEWER, "holdfast", "replay", JOB, "-n", TEAM)
    assert said.code == 0, said.err + said.out
    said = installed.run(VIEWER, "holdfast", "why", "last", "--job", JOB, "-n", TEAM)
    assert (said.code, said.err) == (
        2,
        "holdfast: incident: 'last' is not accepted; this job has had no incident\n",
    )


def test_a_postmortem_is_written_and_a_round_that_told_nothing_is_not_gone_back_to(
    installed: Installation,
) -> None:
    said = installed.run(VIEWER, "holdfast", "postmortem", "--since", "1h", "--job", JOB, "-n", TEAM)
    assert said.code == 0, said.err
    assert said.out.startswith(f"# Incidents of {TEAM}/{JOB} since ")
    assert "There was none." in said.out
    assert "Figures over time: the console holdfast-console:http does not answer" in said.out
    assert installed.run(VIEWER, "holdfast", "rounds", JOB, "-n", TEAM).code == 0
    said = installed.run(VIEWER, "holdfast", "rollback", "1", "--yes", "--job", JOB, "-n", TEAM)
    assert (said.code, said.out) == (2, "")
    assert "those that told how they were started: none" in said.err


def test_an_image_is_only_changed_where_it_is_the_one_that_was_seen(installed: Installation) -> None:
    """The patch of a rollback, by the API server: whole or not at all, and never over somebody else's change."""
    admin = Target(kubeconfig=installed.server.admin_kubeconfig(), namespace=TEAM)
    jobs = ClusterSite(admin).jobs()
    spec = jobs.document(f"{TEAM}/{JOB}")["spec"]
    container = spec["template"]["spec"]["containers"][0]
    now, then = container["image"], f"{container['image']}-before"
    with pytest.raises(HoldfastError):
        jobs.patch(f"{TEAM}/{JOB}", ImageRollback(container["name"], 0, "another", then).patch)
    assert jobs.document(f"{TEAM}/{JOB}")["spec"] == spec
    jobs.patch(f"{TEAM}/{JOB}", ImageRollback(container["name"], 0, now, then).patch)
    assert jobs.document(f"{TEAM}/{JOB}")["spec"]["template"]["spec"]["containers"][0]["image"] == then
    jobs.patch(f"{TEAM}/{JOB}", ImageRollback(container["name"], 0, then, now).patch)


def test_the_runbook_says_why_a_job_does_not_start_and_what_to_type_next(installed: Installation) -> None:
    said = installed.run(VIEWER, "holdfast", "runbook", "will-not-start", "--job", JOB, "-n", TEAM, "-o", "json")
    assert said.code == 1, said.err
    first = json.loads(said.out)["checks"][0]
    assert (first["id"], first["verdict"]) == ("too-few-members", "suspect")
    assert first["next"].startswith(f"kubectl holdfast status {JOB} -n {TEAM}")
    # Whoever may see the record alone: what it does not tell is unknown.
    said = installed.run(HALF, "holdfast", "runbook", "--job", JOB, "-n", TEAM, "-o", "json")
    assert said.code == 0, said.err
    assert json.loads(said.out)[0]["symptom"] == "will-not-start"


def test_whoever_has_no_right_is_told_which_one_and_who_gives_it(installed: Installation) -> None:
    said = installed.run(STRANGER, "holdfast", "status", "-n", TEAM)
    assert (said.code, said.out) == (1, "")
    assert "it needs the right to list trainingjobs.holdfast.dev" in said.err
    assert "the chart's ClusterRole ...-view gives" in said.err
    assert "user bob of context test" in said.err


def test_whoever_may_see_the_record_alone_reads_it_and_is_told_what_more_needs(installed: Installation) -> None:
    said = installed.run(HALF, "holdfast", "status", JOB, "-n", TEAM, "-o", "json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["source"] == "record"
    said = installed.run(HALF, "holdfast", "ranks", JOB, "-n", TEAM)
    assert said.code == 1
    assert (
        "the right to create serviceaccounts/token holdfast-viewer, which the chart's Role ...-reader" in said.err
    )


def test_whoever_views_a_namespace_reads_its_jobs_from_the_watchdog_and_no_others(installed: Installation) -> None:
    said = installed.run(MEMBER, "holdfast", "status", JOB, "-n", TEAM, "-o", "json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["source"] == "watchdog"
    assert installed.run(MEMBER, "holdfast", "journal", JOB, "-n", TEAM).code == 0
    said = installed.run(MEMBER, "holdfast", "journal", f"{HOLDFAST}/{JOB}", "-n", HOLDFAST)
    assert (said.code, said.out) == (1, "")
    assert "the right to create serviceaccounts/token holdfast-viewer" in said.err


def test_an_intervention_is_an_object_of_the_person_who_asked_for_it(installed: Installation) -> None:
    said = installed.run(ON_CALL, "holdfast", "pause", JOB, "-n", TEAM, "--reason", "the room is hot")
    assert said.code == 0, said.err
    assert said.out.startswith("Done: ")
    (created,) = [
        each for each in installed.audited("create", "interventions") if each["user"]["username"] == ON_CALL
    ]
    name = created["objectRef"].get("name") or newest_intervention(installed)
    kept = installed.server.call("GET", f"{GROUP}/namespaces/{TEAM}/interventions/{name}")
    assert kept["spec"] == {"job": JOB, "action": "Pause", "reason": "the room is hot", "fresh": False}
    assert kept["status"]["state"] == "Done"
    again = installed.run(ON_CALL, "holdfast", "pause", JOB, "-n", TEAM)
    assert (again.code, again.out) == (1, "")
    assert again.err.startswith("Refused: ")
    assert installed.run(ON_CALL, "holdfast", "resume", JOB, "-n", TEAM).code == 0


def newest_intervention(installed: Installation) -> str:
    items = installed.server.call("GET", f"{GROUP}/namespaces/{TEAM}/interventions")["items"]
    return str(max(items, key=lambda each: str(each["metadata"]["creationTimestamp"]))["metadata"]["name"])


def test_a_viewer_may_not_intervene(installed: Installation) -> None:
    said = installed.run(VIEWER, "holdfast", "evict", "node-1", "-n", TEAM, "--job", JOB)
    assert said.code == 1
    assert (
        "the right to create interventions.holdfast.dev, which the chart's ClusterRole ...-oncall gives"
        in said.err
    )


def test_a_dry_run_leaves_nothing_behind(installed: Installation) -> None:
    before = len(installed.server.call("GET", f"{GROUP}/namespaces/{TEAM}/interventions")["items"])
    for mode in ("client", "server"):
        said = installed.run(ON_CALL, "holdfast", "resize", "2", "-j", JOB, "-n", TEAM, f"--dry-run={mode}")
        assert said.code == 0, said.err
        assert yaml.safe_load(said.out)["spec"]["nodes"] == 2
        assert said.out.startswith("# It would be Done: resized to 2 nodes\n"), "asked of the watchdog, by GET"
    refused = installed.run(ON_CALL, "holdfast", "evict", "node-9", "-j", JOB, "-n", TEAM, "--dry-run")
    assert (refused.code, refused.out.splitlines()[0]) == (
        1,
        "# It would be Refused: node node-9 has no member of this job",
    )
    assert len(installed.server.call("GET", f"{GROUP}/namespaces/{TEAM}/interventions")["items"]) == before


def test_whoever_may_view_a_job_may_read_the_logs_of_its_pods(installed: Installation) -> None:
    """Which pod is asked for is the watchdog's to say, so a pod that nobody runs is asked for by hand."""
    log = f"/api/v1/namespaces/{TEAM}/pods/{JOB}-9/log"
    read = installed.run(VIEWER, "get", "--raw", log)
    assert "not found" in read.err, "allowed, and there is no such pod"
    assert "forbidden" in installed.run(STRANGER, "get", "--raw", log).err.lower()
    said = installed.run(VIEWER, "holdfast", "logs", JOB, "-n", TEAM, "--rank", "3")
    assert (said.code, said.out) == (2, "")
    assert "there are logs of ranks none" in said.err


def test_kubectl_completes_the_plugin(installed: Installation) -> None:
    said = installed.run(VIEWER, "__complete", "holdfast", "st")
    assert said.code == 0, said.err
    assert said.out.splitlines()[0] == "status\tWhere a job is."


def test_jobs_of_every_namespace_are_listed_to_whoever_may_see_them(installed: Installation) -> None:
    said = installed.run(installed.server.admin_kubeconfig(), "holdfast", "status", "-A")
    assert said.code == 0, said.err
    assert said.out.splitlines()[1].split()[:2] == [TEAM, JOB]
    named = installed.run(installed.server.admin_kubeconfig(), "holdfast", "status", "-A", "-o", "name")
    assert named.out == f"trainingjob.holdfast.dev/{JOB}\n"
    cost = installed.run(installed.server.admin_kubeconfig(), "holdfast", "cost", "-A", "--by", "job", "-o", "csv")
    assert cost.code == 0, cost.err
    assert cost.out.splitlines()[0] == "job,gpu_hours,share,money,currency"
    refused = installed.run(VIEWER, "holdfast", "status", "-A")
    assert (refused.code, refused.out) == (1, "")


def test_every_flag_that_says_where_is_obeyed(installed: Installation, tmp_path: Path) -> None:
    config = str(installed.server.kubeconfig(VIEWER))
    nowhere = tmp_path / "nowhere"  # what KUBECONFIG names is not read
    there = ("--kubeconfig", config, "--context", "test", "--namespace", TEAM)
    right = (*there, "--holdfast-namespace", HOLDFAST, "--holdfast-service", "holdfast-watchdog:http")
    for command in (
        ("status",),
        ("ranks",),
        ("nodes",),
        ("incidents",),
        ("cost",),
        ("journal", "--after", "1"),
        ("replay", "--events"),
    ):
        said = installed.run(nowhere, "holdfast", *command, *right, HOLDFAST_NAMESPACE="default")
        assert said.code == 0, (command, said.err)
    said = installed.run(nowhere, "holdfast", "ranks", *there, "--holdfast-namespace", "default")
    assert said.code == 1
    assert 'in the namespace "default"' in said.err, "whose token is asked for there"
    wrong = ("--holdfast-namespace", HOLDFAST, "--holdfast-service", "another:http")
    said = installed.run(nowhere, "holdfast", "ranks", *there, *wrong)
    assert said.code != 0
    assert "another" in said.err, said


def test_a_login_by_a_plugin_works_and_one_that_fails_says_so(installed: Installation, tmp_path: Path) -> None:
    config = yaml.safe_load(installed.server.admin_kubeconfig().read_text())
    token = config["users"][0]["user"]["token"]
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {"token": token},
    }
    for name, script in (("works", f"echo '{json.dumps(credential)}'"), ("fails", "echo no ticket >&2; exit 1")):
        plugin = {"apiVersion": credential["apiVersion"], "command": "sh", "args": ["-c", script]}
        config["users"][0]["user"] = {"exec": {**plugin, "interactiveMode": "Never"}}
        (tmp_path / name).write_text(json.dumps(config))
    assert installed.run(tmp_path / "works", "holdfast", "status", JOB, "-n", TEAM).code == 0
    said = installed.run(tmp_path / "fails", "holdfast", "status", JOB, "-n", TEAM)
    assert said.code == 3
    assert "the login of context test did not work: " in said.err
    assert "Traceback" not in said.err


def test_a_wrong_place_is_named(installed: Installation) -> None:
    elsewhere = installed.run(
        installed.server.admin_kubeconfig(), "holdfast", "ranks", JOB, "-n", TEAM, HOLDFAST_NAMESPACE="default"
    )
    assert elsewhere.code == 3
    assert "there is no account holdfast-viewer in namespace default; say where Holdfast is" in elsewhere.err
    unknown = installed.run(VIEWER, "holdfast", "status", "--context", "prod")
    assert unknown.code == 2
    assert "--context: 'prod' is not accepted; the contexts of " in unknown.err
    assert unknown.err.rstrip().endswith(" are: test")


def test_the_doctor_finds_what_is_missing(installed: Installation) -> None:
    said = installed.run(installed.server.admin_kubeconfig(), "holdfast", "doctor", "-n", TEAM, "-o", "json")
    assert said.code == 1, said.err  # no pod runs on this API server
    found = {each["what"]: each for each in json.loads(said.out)}
    assert found["API server"]["level"] == "ok"
    assert found["definition trainingjobs"] == {
        "level": "ok",
        "what": "definition trainingjobs",
        "says": "installed, of this version",
        "fix": "",
    }
    assert found["operator"]["level"] == "FAIL"
    assert found["operator lease"]["level"] == "ok"  # the process of this test holds it
    assert found["watchdog"]["level"] == "FAIL"
    assert (found["redis"]["level"], found["redis"]["says"]) == ("FAIL", "0 of 3 ready")
    assert found["spread"]["level"] == "ok"
    assert found["reading"]["says"] == "the watchdog answered through the API server: 1 jobs"
    assert found["jobs"]["level"] == "ok"
    assert found["rights"]["level"] == "ok"


def test_while_the_watchdog_is_away_the_record_answers(installed: Installation) -> None:
    assert installed.watchdog is not None
    installed.watchdog.kill()
    try:
        said = installed.run(VIEWER, "holdfast", "status", JOB, "-n", TEAM, "-o", "json")
        assert said.code == 0, said.err
        assert json.loads(said.out)["source"] == "record"
        assert "this is what the TrainingJob's status has recorded" in said.err
        said = installed.run(VIEWER, "holdfast", "incidents", JOB, "-n", TEAM)
        assert (said.code, said.out) == (0, "no incident\n")
        said = installed.run(VIEWER, "holdfast", "ranks", JOB, "-n", TEAM)
        assert (said.code, said.out) == (3, "")
        said = installed.run(ON_CALL, "holdfast", "pause", JOB, "-n", TEAM, "--timeout", "1")
        assert said.code == 3
        assert "has no outcome after 1 s" in said.err
        assert "; it stays asked for" in said.err
    finally:
        installed.start_watchdog()
    name = newest_intervention(installed)
    path = f"{GROUP}/namespaces/{TEAM}/interventions/{name}"
    until(
        lambda: installed.server.call("GET", path).get("status", {}).get("state") == "Done",
        lambda: f"{name} was not done after the watchdog came back: {installed.server.call('GET', path)}",
    )
    said = installed.run(ON_CALL, "holdfast", "resume", JOB, "-n", TEAM)
    assert said.code == 0, said.err


def test_an_api_server_that_is_away_is_one_sentence(installed: Installation, tmp_path: Path) -> None:
    config = json.loads(installed.server.admin_kubeconfig().read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "away").write_text(json.dumps(config))
    said = installed.run(tmp_path / "away", "holdfast", "status", JOB, "-n", TEAM)
    assert (said.code, said.out) == (3, "")
    assert "the API server does not answer at https://127.0.0.1:1" in said.err
    assert said.err.count("\n") == 1
    doctor = installed.run(tmp_path / "away", "holdfast", "doctor")
    assert (doctor.code, doctor.out.splitlines()[0].split()[:3]) == (1, ["FAIL", "API", "server"])


def test_without_a_kubeconfig_the_plugin_says_so(installed: Installation, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KUBE")}
    environment |= {"HOME": str(tmp_path), "PATH": f"{installed.folder / 'bin'}:{environment['PATH']}"}
    ended = subprocess.run(
        ["kubectl", "holdfast", "status"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=False,
    )
    assert ended.returncode == 2
    assert "there is no such file; name one with --kubeconfig or KUBECONFIG" in ended.stderr


def test_the_commands_of_the_tutorial_do_what_its_page_shows(installed: Installation, tmp_path: Path) -> None:
    page = read_page(TUTORIAL)
    environment = {
        "PATH": f"{installed.folder / 'bin'}:{os.environ['PATH']}",
        "KUBECONFIG": str(installed.server.admin_kubeconfig()),
        "HOLDFAST_NAMESPACE": HOLDFAST,
    }
    folder = tmp_path / "here"
    folder.mkdir()
    run_page(page, folder, environment, patient(60.0))


async def test_a_rollback_gives_the_image_of_the_round_back_and_starts_every_worker_anew(
    installed: Installation,
) -> None:
    installed.submit("back", nodes_max=1)
    path = f"{GROUP}/namespaces/{TEAM}/trainingjobs/back"

    def image() -> str:
        found: str = installed.server.call("GET", path)["spec"]["template"]["spec"]["containers"][0]["image"]
        return found

    async def rollback(user: str | Path, *words: str) -> Said:
        words = ("holdfast", "rollback", *words, "--job", "back", "-n", TEAM)
        return await asyncio.to_thread(installed.run, user, *words)

    admin = installed.server.admin_kubeconfig()
    try:
        async with played_launcher(installed, f"{TEAM}/back", "back-0") as (launcher, first):
            manifest = RunManifest(
                1, first, ("python", "train.py"), settings={"versions": {IMAGE: "trainer:before"}}
            )
            await launcher.say(RunDescribed(first, manifest))
            said = await rollback(admin, str(first))
            assert (said.code, image()) == (0, "trainer:test"), said
            change = "container trainer: image trainer:test -> trainer:before"
            assert said.out.startswith(f"{change}, as round {first} told\n")
            refused = await rollback(VIEWER, str(first), "--yes")
            assert (refused.code, image()) == (1, "trainer:test"), refused
            entering = asyncio.create_task(launcher.enter(after=first))
            said = await rollback(admin, str(first), "--yes")
            assert (said.code, image()) == (0, "trainer:before"), said
            assert "Done" in said.out
            assert await entering > first, "every worker starts anew, in a round of its own"
    finally:
        installed.server.call("DELETE", path)
    orders = installed.server.call("GET", f"{GROUP}/namespaces/{TEAM}/interventions")["items"]
    asked = [each["spec"] for each in orders if each["spec"]["job"] == "back"]
    assert [(each["action"], each["reason"]) for each in asked] == [
        (
            "Restart",
            f"rolled back to the image of round {first}, trainer:before, from trainer:test",
        )
    ]
