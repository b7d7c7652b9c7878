"""Answers for names of services, as a cluster's own name server would. A program: the harness runs it.

    cluster_dns.py ADDRESS PORT API_URL AUTHORITY_FILE TOKEN

Known are SERVICE.NAMESPACE.svc.cluster.local (its address, or those of a headless one's pods) and
HOSTNAME.SERVICE.NAMESPACE.svc.cluster.local. All other names do not exist. IPv4 over UDP only.
Source: https://github.com/kubernetes/dns/blob/master/docs/specification.md; RFC 1035 section 4 (messages)
"""

import json
import ssl
import struct
import sys
import time
import urllib.error
import urllib.request
from ipaddress import IPv4Address
from socketserver import BaseRequestHandler, ThreadingUDPServer
from typing import Any

DOMAIN = ["svc", "cluster", "local"]
KEEP_S = 0.5  # how long what the API server said is good for
TTL_S = 1
A, ANY_CLASS, NO_ERROR, SERVER_FAILED, NO_SUCH_NAME = 1, 1, 0, 2, 3


class Services:
    """What the API server knows of services."""

    def __init__(self, url: str, authority: str, token: str):
        self.url = url
        self.token = token
        self.ssl = ssl.create_default_context(cafile=authority)
        self.known: dict[str, tuple[float, Any]] = {}

    def addresses(self, name: str) -> list[str] | None:
        """The addresses of a name, or None when there is no such name. Raises OSError: the server is away."""
        labels = name.lower().rstrip(".").split(".")
        if labels[-3:] != DOMAIN or len(labels) not in (5, 6):
            return None
        *hostname, service, namespace = labels[:-3]
        found = self._get(f"/api/v1/namespaces/{namespace}/services/{service}")
        if found is None:
            return None
        if not hostname and found["spec"]["clusterIP"] != "None":
            return [found["spec"]["clusterIP"]]
        slices = self._get(
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
            f"?labelSelector=kubernetes.io/service-name={service}"
        )
        entries = [entry for each in slices["items"] for entry in each.get("endpoints") or ()]
        ready = [entry for entry in entries if entry.get("conditions", {}).get("ready", True)]
        if hostname:
            ready = [entry for entry in ready if entry.get("hostname") == hostname[0]]
        return [address for entry in ready for address in entry["addresses"]] or None

    def _get(self, path: str) -> Any:
        asked, answer = self.known.get(path, (-KEEP_S, None))
        if time.monotonic() - asked < KEEP_S:
            return answer
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"})
        try:
            with urllib.request.urlopen(request, timeout=3.0, context=self.ssl) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            answer = None
        self.known[path] = (time.monotonic(), answer)
        return answer


def reply(query: bytes, services: Services) -> bytes:
    """The answer to one question."""
    number, flags = struct.unpack_from("!HH", query)
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace"))
        at += 1 + query[at]
    question = query[12 : at + 5]
    (kind,) = struct.unpack_from("!H", query, at + 1)
    try:
        found = services.addresses(".".join(labels))
        code = NO_ERROR if found is not None else NO_SUCH_NAME
    except OSError:
        found, code = None, SERVER_FAILED
    answers = [_record(each) for each in found or ()] if kind == A else []
    # An answer (0x8000), with authority (0x0400), recursion asked for as in the query.
    header = struct.pack("!HHHHHH", number, 0x8400 | (flags & 0x0100) | code, 1, len(answers), 0, 0)
    return header + question + b"".join(answers)


def _record(address: str) -> bytes:
    return struct.pack("!HHHIH", 0xC00C, A, ANY_CLASS, TTL_S, 4) + IPv4Address(address).packed


class Handler(BaseRequestHandler):
    services: Services

    def handle(self) -> None:
        query, socket = self.request
        socket.sendto(reply(query, self.services), self.client_address)


def main() -> None:
    address, port, *api = sys.argv[1:]
    Handler.services = Services(*api)
    with ThreadingUDPServer((address, int(port)), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
