"""Whose word counts about which rank."""

import msgspec
import pytest

from holdfast.api.rankrecord import Phase
from holdfast.api.round import Endpoint, Entry, MemberRanks, Restore, Round, Tier
from holdfast.api.telemetry import (
    BatchTaken,
    DeviceAnswered,
    NodeReport,
    ParametersChanged,
    ParametersFingerprinted,
    ProcessState,
    RankSample,
    XidRaised,
)
from holdfast.watchdog.server.identity import credible

ROUND = Round(
    job="research/gpt",
    number=7,
    ranks=(MemberRanks("gpt-0", "node-1", 0, 2), MemberRanks("gpt-1", "node-1", 2, 2)),
    endpoint=Endpoint("h", 1),
    restore=Restore(Tier.NONE, None, ""),
    entry=Entry.RESPAWN,
    reason="",
)


def sample(member: str, rank: int, number: int = 7) -> RankSample:
    return RankSample(number, rank, ProcessState.RUNNING, Phase.FORWARD, 0.0, 0.0, member=member)


def report(**said: object) -> NodeReport:
    return msgspec.structs.replace(NodeReport("node-1", "b", 1), **said)


def test_a_member_speaks_for_its_own_ranks() -> None:
    told = report(ranks=(sample("gpt-0", 1), sample("gpt-1", 2), sample("", 3)))
    assert credible(told, ROUND) is told


@pytest.mark.parametrize(("member", "rank"), [("gpt-0", 2), ("gpt-1", 1), ("gpt-1", 4), ("stranger", 0)], ids=str)
def test_nobody_speaks_for_the_ranks_of_others(member: str, rank: int) -> None:
    own = sample("gpt-0", 0)
    assert credible(report(ranks=(sample(member, rank), own)), ROUND).ranks == (own,)


def test_what_ranks_say_of_their_arithmetic_is_of_those_who_run_them_and_the_agents_own_word_stays() -> None:
    xid = XidRaised("GPU-1", 79, 0.0)
    own = ParametersFingerprinted(7, 0, 1, 10, 99, 0.0, "gpt-0")
    forged = (
        ParametersFingerprinted(7, 0, 1, 10, 1, 0.0, "stranger"),
        DeviceAnswered(7, 2, 1, 10, 1, 0, 0.0, "gpt-0"),
        ParametersChanged(7, 2, 10, 0.0, member="gpt-0"),
        BatchTaken(7, 2, 10, 1, 0.0, member="gpt-0"),
    )
    assert credible(report(events=(*forged, xid, own)), ROUND).events == (xid, own)


def test_before_there_is_a_round_nothing_can_be_told_apart_and_nothing_counts() -> None:
    told = report(ranks=(sample("stranger", 0),))
    assert credible(told, None) is told
    assert credible(report(ranks=(sample("stranger", 0, number=6),)), ROUND).ranks, (
        "detectors count no other round"
    )
