"""The certificate of a run's own watchdog: signed by itself, made anew for each start, trusted by name.

Tokens cross the network between hosts, so it is encrypted. Made with the openssl program, which machines with ssh
or Slurm's munge have.
"""

import subprocess
from pathlib import Path
from typing import Final

from holdfast.api.errors import Unavailable

DAYS: Final = 3650  # longer than any run; it goes with the run
_WITHIN_S: Final = 30.0


def make_certificate(certificate: Path, key: Path, address: str) -> None:
    """For a server at the IP address. The key's file has mode 0600. Raises Unavailable."""
    key.unlink(missing_ok=True)
    key.touch(mode=0o600)
    command = (
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", str(DAYS), "-subj", "/CN=holdfast-watchdog", "-addext", f"subjectAltName=IP:{address}"),
        *("-keyout", str(key), "-out", str(certificate)),
    )
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_S, check=False)
    except FileNotFoundError as error:
        raise Unavailable("the program openssl is not here; the watchdog's certificate is made with it") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"openssl made no certificate within {_WITHIN_S:.0f} s") from error
    if made.returncode:
        raise Unavailable(f"openssl made no certificate for {address}: {made.stderr.strip()[-300:]}")
