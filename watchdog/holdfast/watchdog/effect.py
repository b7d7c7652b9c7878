"""What the brain asks the shell to do. Each is a desired state or a record; applying one twice is harmless."""

import msgspec

from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionOutcome
from holdfast.api.membership import SaveWanted, Verified
from holdfast.api.plan import Plan
from holdfast.api.round import Desired
from holdfast.api.selftest import TestWanted


class Show(msgspec.Struct, frozen=True, tag=True):
    """Show this to every launcher of the job, now and whenever one connects."""

    desired: Desired


class Publish(msgspec.Struct, frozen=True, tag=True):
    """Show this plan to the operator."""

    plan: Plan


class Save(msgspec.Struct, frozen=True, tag=True):
    """Ask the launchers of a round for one more checkpoint, now and whenever one of them connects."""

    wanted: SaveWanted


class Vouch(msgspec.Struct, frozen=True, tag=True):
    """Tell the member that runs rank 0 what is verified, now and whenever it connects."""

    member: str
    verified: Verified


class Examine(msgspec.Struct, frozen=True, tag=True):
    """Ask a member for a self-test of its devices, now and whenever it connects, until it has answered."""

    member: str
    wanted: TestWanted


class Dismiss(msgspec.Struct, frozen=True, tag=True):
    """End the connections of members that count as lost, saying why: whoever still lives joins anew."""

    members: tuple[str, ...]
    reason: str


class IncidentOpened(msgspec.Struct, frozen=True, tag=True):
    incident: Incident


class IncidentUpdated(msgspec.Struct, frozen=True, tag=True):
    incident: Incident


class IncidentClosed(msgspec.Struct, frozen=True, tag=True):
    incident: Incident


class Notify(msgspec.Struct, frozen=True, tag=True):
    """A human is needed."""

    incident: str
    text: str


class Pardon(msgspec.Struct, frozen=True, tag=True):
    """Nothing that happened so far is to be held against the node by any job."""

    node: str
    reason: str


class Answered(msgspec.Struct, frozen=True, tag=True):
    """An intervention came to its end."""

    outcome: InterventionOutcome


IncidentEffect = IncidentOpened | IncidentUpdated | IncidentClosed
Effect = Show | Publish | Save | Vouch | Examine | Dismiss | IncidentEffect | Notify | Pardon | Answered
