"""The test cluster is a cluster: what tests of Holdfast on it take for granted."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cluster import Cluster
from cluster_images import BUSYBOX_IMAGE
from patience import patient

HEARTBEAT_LOST_S_MAX = patient(20.0)  # 8 s of grace, as the control plane is set, and some for two busy cores
SILENT_S = 2.0
PORT = 8080
SERVE = f"mkdir /www; hostname > /www/index.html; echo serving $(hostname); httpd -f -p {PORT} -h /www"


def pod(name: str, node: str, command: str = SERVE) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
        "readinessProbe": {"httpGet": {"port": PORT, "path": "/"}, "periodSeconds": 1},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {
            "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
        },
    }


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": PORT}], **spec},
    }


class Web:
    """A pod with an HTTP server on each node, and a service before them."""

    def __init__(self, cluster: Cluster, namespace: str):
        self.cluster = cluster
        self.namespace = namespace

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, given=given)

    def inside(self, pod: str, command: str) -> str:
        return self.kubectl("exec", pod, "--", "sh", "-c", command).strip()

    def fetch(self, pod: str, address: str) -> str:
        return self.inside(pod, f"wget -q -O - http://{address}/")

    def field(self, kind: str, name: str, path: str) -> str:
        return self.kubectl("get", kind, name, "-o", f"jsonpath={{{path}}}")

    def is_ready(self, name: str) -> bool:
        return self.field("pod", name, ".status.containerStatuses[0].ready") == "true"

    def restarts(self, name: str) -> int:
        return int(self.field("pod", name, ".status.containerStatuses[0].restartCount") or 0)


@pytest.fixture(scope="module")
def web(cluster: Cluster) -> Iterator[Web]:
    namespace = cluster.new_namespace("smoke")
    web = Web(cluster, namespace)
    manifests = [pod(f"web-{node}", node) for node in cluster.nodes]
    for manifest in (*manifests, service("web"), service("web-pods", clusterIP="None")):
        web.kubectl("apply", "-f", "-", given=json.dumps(manifest))
    cluster.wait("all pods ready", lambda: all(web.is_ready(f"web-{node}") for node in cluster.nodes))
    yield web
    web.kubectl("delete", "namespace", namespace, "--wait=false")


def test_every_node_runs_a_pod_and_pods_of_two_nodes_reach_each_other(web: Web) -> None:
    address = web.field("pod", "web-node-2", ".status.podIP")
    assert web.fetch("web-node-1", f"{address}:{PORT}") == "web-node-2"


@pytest.mark.parametrize("name", ["web", "web.{namespace}", "web.{namespace}.svc.cluster.local"])
def test_a_pod_reaches_a_service_by_name(web: Web, name: str) -> None:
    assert web.fetch("web-node-3", name.format(namespace=web.namespace)).startswith("web-node-")


def test_a_pod_and_this_machine_reach_a_service_by_address(web: Web) -> None:
    address = web.field("service", "web", ".spec.clusterIP")
    assert web.fetch("web-node-1", address).startswith("web-node-")
    assert web.cluster.fetch(f"http://{address}/").startswith("web-node-")


def test_the_name_of_a_headless_service_has_the_addresses_of_its_pods(web: Web) -> None:
    said = web.inside("web-node-1", f"nslookup web-pods.{web.namespace}.svc.cluster.local")
    for node in web.cluster.nodes:
        assert web.field("pod", f"web-{node}", ".status.podIP") in said


def test_a_name_that_no_service_has_does_not_exist(web: Web) -> None:
    assert "NXDOMAIN" in web.inside(
        "web-node-1", f"nslookup nobody.{web.namespace}.svc.cluster.local 2>&1 || true"
    )


def test_logs_and_commands_reach_a_container(web: Web) -> None:
    assert web.kubectl("logs", "web-node-1").strip() == "serving web-node-1"
    assert web.inside("web-node-2", "hostname") == "web-node-2"


def test_a_node_whose_kubelet_died_is_not_ready_while_its_containers_run_on(web: Web) -> None:
    cluster = web.cluster
    node = cluster.nodes["node-2"]
    address = web.field("pod", "web-node-2", ".status.podIP")
    died = time.monotonic()
    node.kill_kubelet()
    cluster.wait("node-2 not Ready", lambda: not node.is_ready(cluster.server), HEARTBEAT_LOST_S_MAX)
    print(f"not Ready {time.monotonic() - died:.1f} s after its kubelet died")

    assert web.fetch("web-node-1", f"{address}:{PORT}") == "web-node-2"

    node.start_kubelet()
    cluster.wait_ready("node-2")


def test_a_node_that_lost_power_falls_silent_and_comes_back_empty(web: Web) -> None:
    cluster = web.cluster
    node = cluster.nodes["node-3"]
    assert node.container_processes("httpd")

    with socket.create_connection((web.field("pod", "web-node-3", ".status.podIP"), PORT), 5.0) as connection:
        node.kill()
        connection.settimeout(SILENT_S)
        with pytest.raises(TimeoutError):  # no end of the connection: nobody was left to say it
            connection.recv(1)
    cluster.wait("node-3 not Ready", lambda: not node.is_ready(cluster.server), HEARTBEAT_LOST_S_MAX)
    node.start()

    cluster.wait_ready("node-3")
    cluster.wait(
        "web-node-3 started again", lambda: web.restarts("web-node-3") == 1 and web.is_ready("web-node-3")
    )
