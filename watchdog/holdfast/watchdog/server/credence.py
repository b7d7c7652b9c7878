"""Whose word counts about which rank: a pod speaks for the ranks of the member that it is, and for no others.

An agent reads what pods leave in their own volumes, and passes it on with the name of the pod as the kubelet knows
it. Any pod of a job's namespace may say that it is of that job; only a member of the round has ranks in it.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from holdfast.api.round import Round
from holdfast.api.telemetry import (
    DeviceAnswered,
    NodeEvent,
    NodeReport,
    ParametersChanged,
    ParametersFingerprinted,
    RankSample,
)

Said = TypeVar("Said", bound=RankSample | NodeEvent)


def credible(report: NodeReport, newest: Round | None) -> NodeReport:
    """The report without what pods say of ranks that are not theirs. What is of other rounds counts nowhere."""
    if newest is None:
        return report
    ranks, events = _own(report.ranks, newest), _own(report.events, newest)
    if len(ranks) == len(report.ranks) and len(events) == len(report.events):
        return report
    return msgspec.structs.replace(report, ranks=ranks, events=events)


def _own(said: Iterable[Said], newest: Round) -> tuple[Said, ...]:
    return tuple(each for each in said if _is_own(each, newest))


def _is_own(said: RankSample | NodeEvent, newest: Round) -> bool:
    if not isinstance(said, RankSample | ParametersFingerprinted | DeviceAnswered | ParametersChanged):
        return True  # of the node: the agent's own word
    if not said.member or said.round != newest.number:
        return True
    share = newest.share_of(said.member)
    return share is not None and share.first_rank <= said.rank < share.first_rank + share.local_size
