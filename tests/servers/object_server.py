"""An S3 server of a test's own, over HTTP and on a folder: it knows nothing of signatures, and nothing of scale.

What it does know, it does as S3: listings, ranges, multipart uploads, and puts that fail when the name is taken.
"""

import logging
import threading
import xml.etree.ElementTree as ET
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path

from localbucket import S3_NAMESPACE, S3Handler

BUCKET = "runs"


class _Handler(S3Handler):  # type: ignore[misc]  # It ships no types.
    """Deletes several objects at once as well."""

    protocol_version = "HTTP/1.1"

    def _post_request(self, bucket: str, key: str) -> None:
        if "delete" not in self.query:
            super()._post_request(bucket, key)
            return
        result = ET.Element("DeleteResult", xmlns=S3_NAMESPACE)
        for each in ET.fromstring(self._read_body()).iter(f"{{{S3_NAMESPACE}}}Key"):
            path = self._object_path(bucket, each.text or "")
            path.unlink(missing_ok=True)
            with suppress(OSError):  # Others are still in it.
                path.parent.rmdir()
            ET.SubElement(ET.SubElement(result, "Deleted"), "Key").text = each.text
        self._send_xml(result)


class ObjectServer:
    """Listens on loopback from the start, with one empty bucket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / BUCKET
        self.folder.mkdir(parents=True)
        logging.getLogger("localbucket").setLevel(logging.CRITICAL)
        handler = type("Handler", (_Handler,), {"data_root": folder, "log_message": lambda *said: None})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def environment(port: int) -> dict[str, str]:
    """What leads a client to such a server."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
