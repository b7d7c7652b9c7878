"""How one watchdog is reached."""

from dataclasses import dataclass, field

from holdfast.wire.address import Address
from holdfast.wire.credential import Credential
from holdfast.wire.trust import Trust


@dataclass(frozen=True, slots=True)
class Access:
    """Where a watchdog is, the token that is shown to it, and the certificates that are accepted of it."""

    address: Address
    credential: Credential
    trust: Trust = field(default_factory=Trust)

    def url(self, scheme: str, path: str) -> str:
        """`scheme` is http or ws; each is encrypted where a certificate authority was given."""
        return f"{scheme}{'s' * self.trust.encrypts}://{self.address}{path}"
