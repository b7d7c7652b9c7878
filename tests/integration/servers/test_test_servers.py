"""The servers that other tests stand on do what those tests take for granted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import redis
from apiserver import ApiServer, Refused
from patience import patient
from redis_server import RedisServer


def test_an_api_server_that_is_killed_and_restarted_keeps_its_objects(
    apiserver: ApiServer, namespace: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    apiserver.call("POST", path, {"metadata": {"name": "kept"}, "data": {"a": "b"}})

    apiserver.restart()

    assert apiserver.call("GET", f"{path}/kept")["data"] == {"a": "b"}


def test_a_watch_from_before_a_compaction_is_told_that_it_is_too_old(apiserver: ApiServer, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    seen = apiserver.call("GET", path)["metadata"]["resourceVersion"]
    apiserver.new_namespace()

    apiserver.expire_watches()

    event = apiserver.call("GET", f"{path}?watch=1&timeoutSeconds=5&resourceVersion={seen}")
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_a_token_asked_for_an_audience_is_good_for_that_audience_only(
    apiserver: ApiServer, namespace: str
) -> None:
    token = apiserver.service_account_token(namespace, "default", ["holdfast"])

    def review(audience: str) -> dict[str, object]:
        request = {"spec": {"token": token, "audiences": [audience]}}
        status: dict[str, object] = apiserver.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", request)[
            "status"
        ]
        return status

    accepted = review("holdfast")
    assert accepted["authenticated"] is True
    assert accepted["audiences"] == ["holdfast"]
    assert "authenticated" not in review("something-else")


def test_a_user_may_do_what_rbac_says_and_no_more(apiserver: ApiServer, namespace: str) -> None:
    token = apiserver.service_account_token(namespace, "default")

    with pytest.raises(Refused) as refused:
        apiserver.call("GET", f"/api/v1/namespaces/{namespace}/pods", token=token)

    assert refused.value.code == 403
    assert f"system:serviceaccount:{namespace}:default" in str(refused.value)


@pytest.mark.needs("redis")
@pytest.mark.parametrize("password", ["", "secret"])
def test_a_redis_that_is_killed_and_started_again_keeps_what_was_appended(tmp_path: Path, password: str) -> None:
    server = RedisServer(tmp_path, password)
    server.start()
    try:
        with redis.Redis.from_url(server.url) as client:
            client.set("kept", "yes")
            server.kill()
            server.start()
            assert client.get("kept") == b"yes"
    finally:
        server.stop()


def test_a_paused_redis_does_not_answer_until_it_is_resumed(redis_server: RedisServer) -> None:
    redis_server.pause()
    with redis.Redis.from_url(redis_server.url, socket_timeout=0.2) as client, pytest.raises(redis.TimeoutError):
        client.ping()
    redis_server.resume()
    assert redis_server.answers()


START_AND_HANG = """
import sys, time
from pathlib import Path
from redis_server import RedisServer
server = RedisServer(Path(sys.argv[1]))
server.start()
print(server.process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.needs("redis")
def test_a_server_does_not_outlive_a_test_run_that_was_killed(tmp_path: Path) -> None:
    servers = str(Path(__file__).parents[2] / "servers")
    run = subprocess.Popen(
        [sys.executable, "-c", START_AND_HANG, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": servers},
    )
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    run.stdout.close()
    assert psutil.pid_exists(pid)

    run.send_signal(signal.SIGKILL)
    run.wait()

    deadline = time.monotonic() + patient(10.0)
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"redis-server {pid} still runs"
        time.sleep(0.02)
