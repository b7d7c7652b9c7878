"""Keys and certificates for a test cluster, made with openssl: one authority that signs servers and users."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from patience import patient


@dataclass(frozen=True)
class KeyPair:
    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a folder. Makes its own key when it is built."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = folder / "ca.crt"
        self.key = folder / "ca.key"
        _openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
            *("-subj", "/CN=test-cluster-ca", "-keyout", self.key, "-out", self.certificate),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def server(self, name: str, names: Sequence[str], addresses: Sequence[str]) -> KeyPair:
        """A serving certificate for all these names and addresses."""
        alternatives = [f"DNS:{each}" for each in names] + [f"IP:{each}" for each in addresses]
        return self._sign(name, f"/CN={name}", "serverAuth", ",".join(alternatives))

    def user(self, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """A client certificate. To the API server the common name is the user, each organisation a group."""
        subject = "".join(f"/O={each}" for each in groups) + f"/CN={user}"
        return self._sign("user-" + user.replace(":", "_").replace("/", "_"), subject, "clientAuth", "")

    def signing_key(self, name: str) -> Path:
        """An RSA key to sign service account tokens with."""
        path = self.folder / f"{name}.key"
        _openssl("genrsa", "-out", path, "2048")
        return path

    def _sign(self, file: str, subject: str, usage: str, alternatives: str) -> KeyPair:
        pair = KeyPair(self.folder / f"{file}.crt", self.folder / f"{file}.key")
        extensions = [
            f"extendedKeyUsage={usage}",
            "basicConstraints=critical,CA:FALSE",
            "authorityKeyIdentifier=keyid",
        ]
        extensions += [f"subjectAltName={alternatives}"] if alternatives else []
        _openssl(
            *("req", "-x509", "-CA", self.certificate, "-CAkey", self.key, "-days", "2", "-nodes"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", subject),
            *(argument for extension in extensions for argument in ("-addext", extension)),
            *("-keyout", pair.key, "-out", pair.certificate),
        )
        return pair


def _openssl(*arguments: str | Path) -> None:
    result = subprocess.run(
        ["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=patient(60), check=False
    )
    if result.returncode != 0:
        raise RuntimeError(f"openssl {' '.join(map(str, arguments))}: {result.stderr.strip()}")
