"""One embedded run from start to end: watchdog, local nodes, faults, and everything put away afterwards."""

import asyncio
import dataclasses
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.status import JobPhase, JobStatus
from holdfast.api.trainingjob import policy_of
from holdfast.cli.embedded.audience import Audience, Picture, follow
from holdfast.cli.embedded.console import ConsoleProcess
from holdfast.cli.embedded.faultscript import ScriptedFault, drills_of, is_relayed, variables_of
from holdfast.cli.embedded.injector import Injector
from holdfast.cli.embedded.jobfile import Prepared
from holdfast.cli.embedded.ledgerwriter import LedgerWriter
from holdfast.cli.embedded.localcluster import LocalCluster, PlacementOptions
from holdfast.cli.embedded.localnode import NodeOptions
from holdfast.cli.embedded.publishing import Publishing
from holdfast.cli.embedded.stopping import SAVE_WITHIN_S, StopSignals, save_last
from holdfast.cli.embedded.watchdog import WatchdogLink, WatchdogProcess
from holdfast.cli.sequel import Follows, Trained, question, sequel, trained_by
from holdfast.cli.statedirectory import RunningJob, StateDirectory, run_lock

DRAIN_S: Final = 5.0
VERDICT_S: Final = 2.0
REASON_CHARACTERS_MAX: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One run. `listen` is where the watchdog listens; port 0 takes any.

    `starts_over`: what an earlier run left is removed, else it is gone on from. `observes`: what would be done
    about faults is told, and nothing is done. `has_console`: one is started beside it, where it is installed.
    `continues`: a job that has succeeded goes on whatever its file says now. `save_within_s` is how long a last
    checkpoint may take when the run is stopped by hand. `skip_batches` are passed over from the newest checkpoint
    on, of a job that has failed or was stopped.
    """

    prepared: Prepared
    job_file: str
    directory: StateDirectory
    placement: PlacementOptions
    faults: tuple[ScriptedFault, ...] = ()
    listen: str = "127.0.0.1:0"
    starts_over: bool = False
    observes: bool = False
    has_console: bool = True
    continues: bool = False
    save_within_s: float = SAVE_WITHIN_S
    skip_batches: int = 0


class Interrupted(Exception):
    """Ctrl-C or SIGTERM: the run was stopped and can be resumed. The text says what is saved and what is lost."""


async def run_session(options: RunOptions, audience: Audience) -> Picture:
    """Run the job to its end; returns the last picture of it.

    Raises Interrupted after everything was stopped, Unavailable when the run cannot go on, OSError when the
    state directory cannot be written.
    """
    with run_lock(options.directory):
        lay_out(options.directory, options.prepared.job.id, options.job_file, starts_over=options.starts_over)
        watchdog = WatchdogProcess(options.directory, options.listen, audience.say)
        try:
            at = await watchdog.start()
            address = f"{at.host}:{at.port}"
            link = WatchdogLink(address, options.directory, options.prepared.job.id)
            try:
                return await _run(options, address, audience, link, watchdog)
            finally:
                await link.close()
        finally:
            await watchdog.stop()


async def _run(
    options: RunOptions, address: str, audience: Audience, link: WatchdogLink, watchdog: WatchdogProcess
) -> Picture:
    if options.observes:
        audience.say("observing only: what would be done about a fault is told, and nothing is done")
    before = await link.status()
    policy = msgspec.structs.replace(policy_of(options.prepared.job), observe=options.observes)
    is_published = policy.reporting is not None
    publishing = Publishing(options.directory, address, options.prepared.job.id, audience.say, wanted=is_published)
    trained = trained_by(options.prepared.entrypoint, options.prepared.job.spec)
    if (ended := await _take_up(options, before, link, trained, audience.say)) is not None:
        await _publish_rest(publishing)
        return Picture(ended, incidents=await link.incidents())
    options.directory.write_running_job(RunningJob(options.prepared.job.id, options.job_file, trained))
    await link.submit(policy)
    if options.starts_over:
        # The job may have named a place of its own, where what was saved before stays.
        await link.restart("the run was told to start over (--fresh)", fresh=True)
    if options.skip_batches:
        audience.say(f"going on from the newest checkpoint without the next {options.skip_batches} batches")
        await link.skip_batches(options.skip_batches, "the job was run again with --skip-batches")
    nodes = NodeOptions(
        prepared=options.prepared,
        directory=options.directory,
        watchdog=address,
        relayed=is_relayed(options.faults),
        variables=variables_of(options.faults),
        drills=drills_of(options.faults, gpus=options.prepared.job.spec.local_size()),
    )
    cluster = LocalCluster(nodes, options.placement, audience.say)
    ledger = LedgerWriter(link, options.prepared.job.spec.checkpoint.uri or "", audience.say)
    following = asyncio.create_task(follow(link, audience))
    others = [
        asyncio.create_task(watchdog.supervise()),
        asyncio.create_task(link.operate(cluster)),
        asyncio.create_task(cluster.run()),
        asyncio.create_task(ledger.keep_writing()),
    ]
    console = ConsoleProcess(options.directory, address, audience.say)
    beside = [asyncio.create_task(console.run())] if options.has_console else []
    injector = Injector(link, cluster, watchdog, audience.say)
    others.append(asyncio.create_task(publishing.run()))
    if options.faults:
        others.append(asyncio.create_task(_inject(options, injector)))
    try:
        save = partial(_stop, link, options.save_within_s, audience.say)
        picture = await first_to_end(following, others, save)
        await cluster.drain(DRAIN_S)
        await publishing.finish()
        return dataclasses.replace(picture, missed=injector.missed)
    finally:
        for task in (following, *others, *beside):
            task.cancel()
        await asyncio.gather(following, *others, *beside, return_exceptions=True)
        await ledger.write()
        await console.stop()
        await cluster.stop()
        await publishing.stop()  # behind what workers said last


async def _take_up(
    options: RunOptions,
    before: JobStatus | None,
    link: WatchdogLink,
    trained: Trained,
    say: Callable[[str], None],
) -> JobStatus | None:
    """Go on from where an earlier run left the job; the status of one that has ended and stays so.

    Raises InvalidInput where going on takes a word of the user's, and where batches are to be passed over and no
    checkpoint stands before them.
    """
    if options.skip_batches and (before is None or before.phase is JobPhase.SUCCEEDED):
        why = "nothing was trained yet" if before is None else "the job has succeeded"
        raise InvalidInput(Problem("--skip-batches", options.skip_batches, f"leave it out: {why}"))
    if before is None:
        return None
    if before.phase is JobPhase.SUCCEEDED:
        goes_on = await begins_again(link, options.directory, trained, say, continues=options.continues)
        return None if goes_on else before
    if before.phase is JobPhase.FAILED:
        say("an earlier run failed; this one goes on from its newest checkpoint")
        if not options.skip_batches:
            await link.restart("the job was run again after it had failed")
    elif options.observes:
        # That none of its workers is left is no fault.
        await link.restart("the job was run again after it had been stopped")
    return None


async def _stop(link: WatchdogLink, within_s: float, say: Callable[[str], None], again: asyncio.Event) -> str:
    if within_s > 0:
        say(f"told to stop: saving first, within {within_s:g} s; told again, it stops at once")
    return await save_last(link, within_s, again)


async def _publish_rest(publishing: Publishing) -> None:
    """What an earlier run ended too soon to publish."""
    running = asyncio.create_task(publishing.run())
    try:
        await publishing.finish()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await publishing.stop()


async def begins_again(
    link: WatchdogLink,
    directory: StateDirectory,
    trained: Trained,
    say: Callable[[str], None],
    *,
    continues: bool,
) -> bool:
    """Whether a job that has succeeded goes on. Raises InvalidInput where that takes a word of the user's."""
    held = directory.running_job()
    follows = sequel(None if held is None else held.trained, trained, told_to_continue=continues)
    if follows.follows is Follows.QUESTION:
        raise question(held.job if held else "", follows.differences)
    if follows.follows is Follows.NOTHING:
        say("an earlier run brought this job to its end; nothing was started; --continue starts it again")
        return False
    why = "; ".join(follows.differences) or "--continue"
    say(f"an earlier run brought this job to its end; this one goes on from its newest checkpoint: {why}")
    await link.restart(f"the job was run again after it had succeeded ({why})"[:REASON_CHARACTERS_MAX])
    return True


async def first_to_end(
    following: asyncio.Task[Picture],
    others: Sequence[asyncio.Task[None]],
    save: Callable[[asyncio.Event], Awaitable[str]] | None = None,
) -> Picture:
    """The last picture of the job, unless something else or a signal ends the run first. After a signal what
    `save` does is waited for; the event it is given is set by a second one.

    Raises Interrupted, and what another task raised; one of `others` that ends for itself counts as interrupted.
    """
    with StopSignals() as told:
        once = asyncio.create_task(told.once.wait())
        saving: asyncio.Future[str] | None = None
        try:
            await asyncio.wait((following, once, *others), return_when=asyncio.FIRST_COMPLETED)
            if once.done() and save is not None and not following.done():
                saving = asyncio.ensure_future(save(told.again))
                await asyncio.wait((saving, following, *others), return_when=asyncio.FIRST_COMPLETED)
            if not once.done():
                # Launchers end with their job: the verdict on the job comes before what its end looks like to
                # others.
                await asyncio.wait((following,), timeout=VERDICT_S)
            if following.done():
                return following.result()
            for task in others:
                if task.done():
                    task.result()
            raise Interrupted(saving.result() if saving is not None and saving.done() else "")
        finally:
            once.cancel()
            if saving is not None:
                saving.cancel()


async def _inject(options: RunOptions, injector: Injector) -> None:
    """The script, and then nothing: its end does not end the run."""
    await injector.run(options.faults)
    await asyncio.Event().wait()


def lay_out(directory: StateDirectory, job: str, job_file: str, *, starts_over: bool) -> None:
    """Make the directory this job's; `starts_over` removes what an earlier run made.

    Raises Unavailable where it is another job's, OSError when it cannot be written.
    """
    held = directory.running_job()
    if held is not None and held.job != job:
        raise Unavailable(f"{directory.root} belongs to the job {held.job}; give {job} another --state-dir")
    if starts_over:
        # What a run made goes, by name: a folder the user named may hold other things as well.
        published = (directory.trackers, directory.event_files)
        for folder in (directory.logs, directory.checkpoints, directory.root / "nodes", *published):
            shutil.rmtree(folder, ignore_errors=True)
        for file in (*directory.root.glob("watchdog.*"), directory.series_file):
            file.unlink(missing_ok=True)
    for stale in (directory.certificate_file, directory.key_file):
        stale.unlink(missing_ok=True)  # of a run on several machines that was lost: this one may speak plainly
    directory.logs.mkdir(exist_ok=True)
    directory.write_running_job(RunningJob(job, job_file, None if held is None or starts_over else held.trained))
