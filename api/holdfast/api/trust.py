"""Which certificates a client of the watchdog accepts, when the watchdog speaks encrypted."""

import ssl
from typing import Final

from holdfast.api.errors import InvalidInput, Problem

# What a launcher in a pod is told. The certificate authority as PEM: it is public, and needs no volume of its own.
WATCHDOG_CA_VARIABLE: Final = "HOLDFAST_WATCHDOG_CA"
NOT_TRUSTED: Final = "its certificate is not one of the certificate authority that was given, or not for this name"


def trusting(pem: str, *, given_by: str) -> ssl.SSLContext:
    """Accepts certificates that one in `pem` has signed, for the name that is asked for. No other counts.

    `given_by` names the flag or variable. Raises InvalidInput when it holds no certificate.
    """
    try:
        context = ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        fix = f"give a certificate authority as PEM ({error})"
        raise InvalidInput(Problem(given_by, None, fix)) from error
    # A certificate that signed itself, or an authority below another one, may be given as well.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
