"""The peers, each a process of its own: what the same requests cost without an operator around them.

    python -m kube.peer post KUBECONFIG COUNT        POST pods, as many at once as the operator does
    python -m kube.peer ours KUBECONFIG COUNT        list pods with the operator's own reflector and cache
    python -m kube.peer informer KUBECONFIG COUNT    list them with the kubernetes package's informer
    python -m kube.peer raw KUBECONFIG COUNT         read the same pages and decode nothing
    python -m kube.peer watch KUBECONFIG COUNT       watch pods, decode every event like the operator, do nothing

Each prints one line of JSON: what it took.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import msgspec
from meter import MEGABYTE, cpu_s, memory

from holdfast.api.trainingjob import read_trainingjob
from holdfast.operator.act.executor import PODS_IN_FLIGHT_MAX
from holdfast.operator.decide.observed import Options
from holdfast.operator.decide.podbuilder import blueprint
from holdfast.operator.kube.cache import Cache
from holdfast.operator.kube.objects import PODS, Pod
from holdfast.operator.kube.reflector import PAGE_OBJECTS, Reflector
from holdfast.wire.kube.client import KubeClient, Request
from holdfast.wire.kube.kubeconfig import Kubeconfig
from kube.job import job_manifest

NAMESPACE: Final = "bare"
TRAINING: Final = "training"
WITHIN_S: Final = 300.0


class _Page(msgspec.Struct):
    metadata: dict[str, Any]


class _Event(msgspec.Struct):
    type: str
    object: Pod


async def post(kubeconfig: str, count: int) -> None:
    """The loop a client would write that knows all its pods from the start."""
    job = read_trainingjob(job_manifest(NAMESPACE, members=count))
    pods = blueprint(job, Options(watchdog="watchdog:1", launcher_image="launcher:bench"))
    credentials = Kubeconfig(kubeconfig)
    await credentials.load()
    url = f"{credentials.server}{PODS.path(NAMESPACE)}"
    waiting = iter(range(count))

    async def work(session: aiohttp.ClientSession) -> None:
        for ordinal in waiting:
            body = msgspec.json.encode(pods.pod(ordinal))
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                content = await answer.read()
                assert answer.status == 201, content

    connector = aiohttp.TCPConnector(limit=PODS_IN_FLIGHT_MAX, ssl=credentials.tls())
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for _ in range(PODS_IN_FLIGHT_MAX):
            group.create_task(work(session))
    _tell(count, count)
    await credentials.close()


async def ours(kubeconfig: str, count: int) -> None:
    api = KubeClient(Kubeconfig(kubeconfig), is_near=True)
    await api.open()
    cache: Cache[Pod] = Cache(lambda old, new: None)
    reflector = Reflector(api, PODS, NAMESPACE, cache, lambda: None)
    running = asyncio.create_task(reflector.run())
    await asyncio.wait_for(reflector.synced.wait(), WITHIN_S)
    _tell(len(cache.objects), count)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await api.close()


async def informer(kubeconfig: str, count: int) -> None:
    await asyncio.to_thread(_inform, kubeconfig, count)


def _inform(kubeconfig: str, count: int) -> None:
    # Not at the top: the others shall not pay for it.
    from kubernetes import client, config
    from kubernetes.informer import SharedInformer

    config.load_kube_config(kubeconfig)
    watched = SharedInformer(client.CoreV1Api().list_namespaced_pod, namespace=NAMESPACE)
    watched.start()
    give_up_at = time.monotonic() + WITHIN_S
    while len(watched.cache.list()) < count and time.monotonic() < give_up_at:
        time.sleep(0.05)  # it works in a thread of its own
    _tell(len(watched.cache.list()), count)


async def raw(kubeconfig: str, count: int) -> None:
    api = KubeClient(Kubeconfig(kubeconfig), is_near=True)
    await api.open()
    query, read_bytes = {"limit": str(PAGE_OBJECTS), "labelSelector": PODS.selector}, 0
    while True:
        content = await api.ask(Request("GET", PODS.path(NAMESPACE), query))
        read_bytes += len(content)
        more = msgspec.json.decode(content, type=_Page).metadata.get("continue", "")
        if not more:
            break
        query["continue"] = more
    _tell(count, count, read_mb=read_bytes / MEGABYTE)
    await api.close()


async def watch(kubeconfig: str, count: int) -> None:
    """Ends after `count` changes. Says on stdout when it watches."""
    api = KubeClient(Kubeconfig(kubeconfig), is_near=True)
    await api.open()
    page = msgspec.json.decode(await api.ask(Request("GET", PODS.path(TRAINING), {"limit": "1"})), type=_Page)
    query = {"watch": "1", "resourceVersion": page.metadata["resourceVersion"], "labelSelector": PODS.selector}
    decoder, seen = msgspec.json.Decoder(_Event), 0
    print("watching", flush=True)
    began_cpu_s = cpu_s(os.getpid())
    async for line in api.lines(Request("WATCH", PODS.path(TRAINING), query, timeout_s=None), WITHIN_S):
        seen += bool(line) and decoder.decode(line).type == "MODIFIED"
        if seen == count:
            break
    _tell(seen, count, watch_cpu_s=cpu_s(os.getpid()) - began_cpu_s)
    await api.close()


KINDS: Final[dict[str, Callable[[str, int], Awaitable[None]]]] = {
    each.__name__: each for each in (post, ours, informer, raw, watch)
}
BEGAN_S: Final = time.monotonic()  # the imports are done: nobody is charged for them
BEGAN_CPU_S: Final = cpu_s(os.getpid())


def _tell(seen: int, count: int, **more: float) -> None:
    """What it took until now. Raises AssertionError when it was not all."""
    if seen != count:
        raise AssertionError(f"{seen} pods were seen, not {count}")
    me = memory(os.getpid())
    told = {
        "wall_s": time.monotonic() - BEGAN_S,
        "cpu_s": cpu_s(os.getpid()) - BEGAN_CPU_S,
        "resident_mb": me.resident_mb,
        "peak_mb": me.peak_mb,
    }
    print(json.dumps(told | more), flush=True)


if __name__ == "__main__":
    asyncio.run(KINDS[sys.argv[1]](sys.argv[2], int(sys.argv[3])))
