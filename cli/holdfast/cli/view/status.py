"""A job's state and its ranks, as text."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.api.status import PendingTest, RankStatus
from holdfast.cli.seen import SeenStatus, Source
from holdfast.cli.view.table import UNKNOWN, ago, number, pairs, seconds, table

SAID_BY = {
    Source.WATCHDOG: "the watchdog",
    Source.RECORD: "the TrainingJob's status",
    Source.STORE: "the state directory of the run, which is over",
}


# Reports come once a second; a job that makes no step for so long, and for so many of its steps, stands still.
QUIET_S_MIN = 10.0
STEPS_MISSED = 5.0
# What a rank checks may fail and is given up then, which only its log says: nothing is proved from there on.
UNPROVED_STEPS = 1000
DAY_S = 86400.0


def status_text(status: SeenStatus) -> str:
    """One line per fact."""
    return pairs(_facts(status))


def status_wide_text(status: SeenStatus) -> str:
    """The same, and what fewer people ask for."""
    saved = status.last_checkpoint
    # The record keeps no cadence.
    cadence = UNKNOWN if status.source is Source.RECORD else "when the script says"
    return pairs(
        [
            *_facts(status),
            ("ETTR", ratio(status.ettr)),
            ("checkpoint at", saved.uri if saved else _no_checkpoint(status)),
            ("checkpoints", status.cadence.says if status.cadence else cadence),
            ("said by", SAID_BY[status.source]),
        ]
    )


def _facts(status: SeenStatus) -> list[tuple[str, str]]:
    phase, members, avoided = status.phase or UNKNOWN, status.members, status.avoided_nodes
    facts = [("job", status.job), ("phase", f"{phase} ({status.reason})" if status.reason else phase)]
    if status.observed:
        facts.append(("observed", "only: what would be done about faults is told, and nothing is done"))
    if status.ended_at:
        facts.append(("ended", ended_text(status).removeprefix("ended ").partition(",")[0]))
    ready = UNKNOWN
    if members is not None:
        joined = f" ({members.there} joined)" if members.there != members.ready else ""
        ready = f"{members.ready} of {members.wanted} ready{joined}, {members.spares} spare"
    facts += [
        ("round", number(status.round)),
        ("members", ready),
        *_tests(status),
        ("world size", number(status.world_size)),
        ("step", _step(status)),
        ("loss", number(status.loss)),
    ]
    if (since := status.unhealthy_from) is not None:  # the history that is trained on is to be given up
        facts.append(("unhealthy", f"not finite from step {since} on; no later one is restored"))
    return [
        *facts,
        ("step time", seconds(status.step_time_s)),
        ("checkpoint", _checkpoint(status)),
        ("verified", _verified(status)),
        ("restarts", number(status.restarts)),
        ("evictions", number(status.evictions)),
        ("incidents", f"{number(status.incidents_open)} open, {number(status.incidents_total)} in all"),
        ("avoided nodes", UNKNOWN if avoided is None else ", ".join(avoided) or "none"),
    ]


def ended_text(status: SeenStatus) -> str:
    """`ended 12:03:04, Succeeded`, in local time; with the day when that is more than a day ago.

    `status.now` is when it is said.
    """
    assert status.ended_at is not None
    at = datetime.fromtimestamp(status.ended_at)
    is_recent = status.now is not None and status.now - status.ended_at < DAY_S
    return f"ended {at:%H:%M:%S}, {status.phase}" if is_recent else f"ended {at:%Y-%m-%d %H:%M:%S}, {status.phase}"


def _step(status: SeenStatus) -> str:
    """With a word when it stands still: nobody is to take a job for healthy that makes no steps."""
    age_s = status.step_age_s
    expected_s = max(QUIET_S_MIN, STEPS_MISSED * (status.step_time_s or 0.0))
    still = age_s is not None and status.ended_at is None and age_s > expected_s
    return f"{number(status.step)}; no step for {seconds(age_s)}" if still else number(status.step)


def _tests(status: SeenStatus) -> list[tuple[str, str]]:
    """Only while some are waited for, a line for each that the status names."""
    tests = status.tests or ()
    rest = (status.tests_total or 0) - len(tests)
    told = [_test(each, status.now) for each in tests] + [f"{rest} more"] * (rest > 0)
    return [("self-tests" if place == 0 else "", each) for place, each in enumerate(told)]


def _test(test: PendingTest, now: float | None) -> str:
    asked = f"asked {seconds(max(0.0, now - test.at))} ago" if now is not None else "asked"
    told = f"{test.level} of {test.node}, {asked} ({test.reason})"
    if test.waits_for:
        return f"{told}; waits for {test.waits_for}"
    return f"{told}; no ranks before" if test.bars else f"{told}; waits until no worker runs"


def _checkpoint(status: SeenStatus) -> str:
    saved = status.last_checkpoint
    if saved is None:
        return _no_checkpoint(status)
    told = f"step {saved.step}"
    if saved.at is not None and status.now is not None:
        told += f", {seconds(max(0.0, status.now - saved.at))} ago"
    verified = status.verified_step is not None and saved.step <= status.verified_step
    return f"{told}, verified" if verified else told


def _verified(status: SeenStatus) -> str:
    """Up to where the job is known to be sound, and by what. That nobody told is no word for it."""
    if status.verified_step is None:
        return f"{UNKNOWN} (nothing has proved a step yet)" if status.source is Source.WATCHDOG else UNKNOWN
    told = f"step {status.verified_step}" + (f", by {status.verified_by}" if status.verified_by else "")
    behind = (status.step or 0) - status.verified_step
    return f"{told}; nothing proved the {behind} steps since" if behind > UNPROVED_STEPS else told


def _no_checkpoint(status: SeenStatus) -> str:
    """A record that counts no incidents holds nothing that a watchdog ever said, of checkpoints either."""
    return UNKNOWN if status.incidents_total is None else "none"


def job_name(job: str) -> str:
    """`-o name`, as kubectl writes it: it can be given to kubectl again."""
    return f"trainingjob.holdfast.dev/{job.partition('/')[2]}"


JOB_HEADERS = ("NAMESPACE", "NAME", "PHASE", "STEP", "READY", "INCIDENTS", "ETTR")
JOB_WIDE_HEADERS = (*JOB_HEADERS, "ROUND", "WORLD SIZE", "RESTARTS", "CHECKPOINT")


def jobs_text(jobs: Sequence[SeenStatus]) -> str:
    """One line per job."""
    return table(JOB_HEADERS, [_job_row(job) for job in jobs]) if jobs else "no job"


def jobs_wide_text(jobs: Sequence[SeenStatus]) -> str:
    """One longer line per job."""
    rows = [
        (*_job_row(job), number(job.round), number(job.world_size), number(job.restarts), _checkpoint(job))
        for job in jobs
    ]
    return table(JOB_WIDE_HEADERS, rows) if jobs else "no job"


def _job_row(job: SeenStatus) -> tuple[str, ...]:
    namespace, _, name = job.job.partition("/")
    ready = UNKNOWN if job.members is None else f"{job.members.ready}/{job.members.wanted}"
    incidents = number(job.incidents_total)
    return (namespace, name, job.phase or UNKNOWN, number(job.step), ready, incidents, ratio(job.ettr))


def ratio(value: float | None) -> str:
    """A share in percent; Unknown is a question mark."""
    return UNKNOWN if value is None else f"{value:.1%}"


RANK_HEADERS = ("RANK", "NODE", "PROCESS", "PHASE", "STEP", "LOSS", "STEP TIME", "PROGRESS", "HEARD", "PID")


def rank_row(rank: RankStatus) -> tuple[str, ...]:
    """The cells of one rank, in the order of `RANK_HEADERS`."""
    return (
        str(rank.rank),
        rank.node,
        rank.process.value,
        phase_word(rank) or UNKNOWN,
        number(rank.step),
        number(rank.loss),
        seconds(rank.step_time_s),
        ago(rank.progress_age_s),
        ago(rank.heard_age_s),
        number(rank.pid),
    )


def phase_word(rank: RankStatus) -> str | None:
    """Where in the step the rank is, in a word; None is Unknown. On the wire it is a number."""
    return None if rank.phase is None else rank.phase.name.lower()


def rank_shown(rank: RankStatus) -> dict[str, Any]:
    """A rank for `-o json` and `-o yaml`."""
    return {**msgspec.to_builtins(rank), "phase": phase_word(rank)}


def ranks_text(ranks: Sequence[RankStatus]) -> str:
    """One line per rank."""
    if not ranks:
        return "no round is running"
    return table(RANK_HEADERS, [rank_row(rank) for rank in ranks])


def ranks_wide_text(ranks: Sequence[RankStatus]) -> str:
    """One longer line per rank."""
    if not ranks:
        return "no round is running"
    headers = (*RANK_HEADERS, "MEMBER", "LOCAL NORM", "GRADIENT NORM")
    return table(
        headers,
        [(*rank_row(rank), rank.member, number(rank.local_grad_norm), number(rank.grad_norm)) for rank in ranks],
    )
