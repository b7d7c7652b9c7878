"""Which member a launcher is, and on which node, where its command line does not say.

In a pod both follow from the token: the one that the kubelet puts there names the pod that it is bound to, and
from Kubernetes 1.32 on the pod's node. Nothing is proved by that, and nothing need be: it is the launcher's own
token, and the watchdog asks the API server whose it is.
Source: https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/ (private claims)
"""

import os
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.api.bounds import Name
from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed
from holdfast.wire.access import Credential

MEMBER_VARIABLE: Final = "HOLDFAST_MEMBER"
NODE_VARIABLE: Final = "HOLDFAST_NODE"
_PARTS: Final = 3  # of a token: header, claims, signature


class Named(msgspec.Struct, frozen=True):
    """Something of the cluster."""

    name: Name = ""


class Bound(msgspec.Struct, frozen=True):
    """What a token is bound to."""

    pod: Named = Named()
    node: Named = Named()


class Claims(msgspec.Struct, frozen=True):
    """What a service account's token says of itself, as far as it matters here."""

    bound: Bound = msgspec.field(name="kubernetes.io", default=Bound())


def place_of(credential: Credential, *, environment: Mapping[str, str], host: str) -> tuple[str, str]:
    """Member and node: as the environment says, else as the token does, else as the host is called.

    Several launchers may run on one host, so its name alone names no member. Raises Unavailable when the token
    cannot be read.
    """
    bound = bound_to(credential.read())
    member = environment.get(MEMBER_VARIABLE) or bound.pod.name or f"{host}-{os.getpid()}"
    return member, environment.get(NODE_VARIABLE) or bound.node.name or host


def bound_to(token: str) -> Bound:
    """The pod and the node that a token names; empty names where it names none."""
    parts = token.split(".")
    if len(parts) != _PARTS:
        return Bound()
    try:
        return decode_json(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), Claims).bound
    except (ValueError, Malformed):
        return Bound()
