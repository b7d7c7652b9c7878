"""Handing an Intervention straight to a watchdog, which is what there is without a cluster."""

import secrets
import time
from typing import Final, NoReturn

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.intervention import InterventionState
from holdfast.cli.site import Answer, Document, Patience
from holdfast.cli.watchdogclient import WatchdogClient

ASK_AGAIN_S: Final = 0.2  # the watchdog itself waits for the answer first


def hand_in(client: WatchdogClient, document: Document, patience: Patience) -> Answer:
    """Ask, and ask again with the same id while the outcome is open: it is done once however often it is asked.

    Raises InvalidSpec when the document is none, and as `WatchdogClient.intervene`.
    """
    # Every read imports this module; pydantic, which reads an Intervention, takes a while.
    from holdfast.api.interventionspec import read_intervention, request_of

    name = f"{document['metadata']['generateName']}{secrets.token_hex(4)}"
    request = request_of(read_intervention(document), name)
    deadline = time.monotonic() + patience.timeout_s
    while True:
        outcome = client.intervene(request)
        if outcome.state is not InterventionState.PENDING or time.monotonic() + ASK_AGAIN_S > deadline:
            return Answer(name, outcome.state, outcome.outcome)
        time.sleep(ASK_AGAIN_S)


def no_server_check() -> NoReturn:
    """Refuse: only an API server checks without doing. Raises InvalidInput."""
    raise InvalidInput(Problem("--dry-run", "server", "write client; only a cluster can check without doing"))
