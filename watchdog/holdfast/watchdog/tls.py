"""The certificate this watchdog serves with, read again when it is renewed."""

import asyncio
import logging
import ssl

from holdfast.api.errors import Unavailable
from holdfast.watchdog.settings import TlsFiles

logger = logging.getLogger(__name__)

# Certificates are renewed days before they end.
LOOK_EVERY_S = 60.0


class ServingCertificate:
    """`context` takes the newest certificate for new connections. Raises Unavailable when made without one."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._version = self._load()

    async def follow(self) -> None:
        """Look for a new certificate, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.refresh()

    def refresh(self) -> None:
        """Read the files if they have changed; while they cannot be read, the older certificate serves on."""
        try:
            if self._stamp() != self._version:
                self._version = self._load()
                logger.info("certificate read path=%s", self._files.certificate)
        except Unavailable as error:
            logger.error("certificate stays as it was reason=%s", error)

    def _load(self) -> tuple[int, ...]:
        version = self._stamp()
        try:
            self.context.load_cert_chain(self._files.certificate, self._files.key)
        except (OSError, ssl.SSLError) as error:
            raise Unavailable(f"{self._files.certificate} and its key cannot be used: {error}") from error
        return version

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = [path.stat() for path in (self._files.certificate, self._files.key)]
        except OSError as error:
            raise Unavailable(f"the certificate cannot be read: {error}") from error
        return tuple(each for status in found for each in (status.st_mtime_ns, status.st_ino))
