"""One run on given hosts from start to end: the watchdog here, a launcher on each, everything put away afterwards.

A run may have to give its hosts back before the job is over: its time is up, or too few of them are left. Then the
job is suspended, which saves it, and whoever starts the next run of it resumes from there.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.api.policy import Policy
from holdfast.api.status import JobPhase, JobStatus
from holdfast.api.trainingjob import policy_of
from holdfast.cli.embedded.audience import Audience, Picture, follow
from holdfast.cli.embedded.jobfile import Prepared
from holdfast.cli.embedded.ledgerwriter import LedgerWriter
from holdfast.cli.embedded.session import first_to_end, lay_out
from holdfast.cli.embedded.watchdog import WatchdogLink, WatchdogProcess
from holdfast.cli.hosts.certificate import make_certificate
from holdfast.cli.hosts.hostcluster import HostCluster, HostOptions
from holdfast.cli.hosts.reach import Reach
from holdfast.cli.hosts.task import HostTask
from holdfast.cli.statedirectory import StateDirectory, run_lock

DRAIN_S: Final = 5.0
POLL_S: Final = 0.2
GIVE_BACK_SIGNAL: Final = signal.SIGUSR1


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRunOptions:
    """One run. `address` is this machine's, as the hosts reach it. `python` is the interpreter on each host.

    `shares_logs`: the hosts write workers' logs into the state directory; else all they say comes through their
    program's output. `save_within_s` is how long a last checkpoint may take once the hosts are to be given back.
    `waits_for_lock_s`: how long the run before may be held for alive by the file server.
    """

    prepared: Prepared
    job_file: str
    directory: StateDirectory
    hosts: tuple[str, ...]
    reach: Reach
    address: str
    python: str
    shares_logs: bool
    save_within_s: float = 120.0
    waits_for_lock_s: float = 1.0
    starts_over: bool = False
    simulated_gpus: int = 0
    kernel_log: str = "auto"
    when_alone: tuple[str, ...] = ()


class GivenBack(Exception):
    """The run ended so that its hosts can be given back; the job goes on in the next one. The text says why."""


async def run_on_hosts(options: HostRunOptions, audience: Audience) -> Picture:
    """Run the job to its end; returns the last picture of it.

    Raises GivenBack or Interrupted after everything was stopped, Unavailable when the run cannot go on, OSError
    when the state directory cannot be written.
    """
    directory = options.directory
    given_back = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(GIVE_BACK_SIGNAL, given_back.set)
    with run_lock(directory, options.waits_for_lock_s):
        lay_out(directory, options.prepared.job.id, options.job_file, starts_over=options.starts_over)
        with _certified(directory, options.address):
            host = f"[{options.address}]" if ":" in options.address else options.address
            watchdog = WatchdogProcess(directory, f"{host}:0", audience.say)
            try:
                at = await watchdog.start()
                link = WatchdogLink(f"{host}:{at.port}", directory, options.prepared.job.id)
                try:
                    return await _run(options, audience, link, watchdog, given_back)
                finally:
                    await link.close()
            finally:
                await watchdog.stop()


@contextmanager
def _certified(directory: StateDirectory, address: str) -> Iterator[None]:
    """A certificate for as long as the run is alive: its presence tells readers that it is spoken to encrypted."""
    make_certificate(directory.certificate_file, directory.key_file, address)
    try:
        yield
    finally:
        directory.certificate_file.unlink(missing_ok=True)
        directory.key_file.unlink(missing_ok=True)


async def _run(
    options: HostRunOptions,
    audience: Audience,
    link: WatchdogLink,
    watchdog: WatchdogProcess,
    given_back: asyncio.Event,
) -> Picture:
    policy = policy_of(options.prepared.job)
    before = await link.status()
    if before is not None and before.phase is JobPhase.SUCCEEDED:
        audience.say("an earlier run brought this job to its end; nothing was started")
        return Picture(before, incidents=await link.incidents())
    await _take_up(options, link, policy, before, audience.say)
    cluster = HostCluster(options.hosts, options.reach, _host_options(options, link.at), audience.say)
    ledger = LedgerWriter(link, options.prepared.job.spec.checkpoint.uri or "", audience.say)
    following = asyncio.create_task(follow(link, audience))
    giving_back = asyncio.create_task(_wait_to_give_back(cluster, given_back))
    others = [
        asyncio.create_task(watchdog.supervise()),
        asyncio.create_task(link.operate(cluster)),
        asyncio.create_task(cluster.run()),
        asyncio.create_task(cluster.look()),
        asyncio.create_task(cluster.beat()),
        asyncio.create_task(cluster.keep_in_service()),
        asyncio.create_task(ledger.keep_writing()),
        giving_back,
    ]
    try:
        picture = await first_to_end(following, others)
        await cluster.drain(DRAIN_S)
        return picture
    except GivenBack as reason:
        audience.say(f"the nodes are given back: {reason}")
        audience.say(await _suspend(link, policy, options.save_within_s))
        raise
    finally:
        for task in (following, *others):
            task.cancel()
        await asyncio.gather(following, *others, return_exceptions=True)
        await ledger.write()
        await cluster.settle()
        await cluster.stop()


async def _take_up(
    options: HostRunOptions,
    link: WatchdogLink,
    policy: Policy,
    before: JobStatus | None,
    say: Callable[[str], None],
) -> None:
    """Submit the job, or go on with it. Raises HoldfastError when the watchdog refuses."""
    if before is not None and before.phase is JobPhase.FAILED:
        say("an earlier run failed; this one goes on from its newest checkpoint")
        await link.restart("the job was run again after it had failed")
    await link.submit(policy)
    if options.starts_over:
        await link.restart("the run was told to start over (--fresh)", fresh=True)
    if before is not None and not options.starts_over:
        for host in await options.reach.given_again():
            with suppress(HoldfastError):  # one that the job does not keep away from needs nothing
                await link.give_back(host, "whoever gives the nodes gave it again after it had been drained")
                say(f"{host} was given again after it had been drained: it is back in service")


def _host_options(options: HostRunOptions, address: str) -> HostOptions:
    spec, directory = options.prepared.job.spec, options.directory
    token, authority = directory.token(), directory.certificate_file.read_text(encoding="ascii")

    def task(host: str) -> HostTask:
        return HostTask(
            job=options.prepared.job.id,
            host=host,
            watchdog=address,
            token=token,
            authority=authority,
            entrypoint=options.prepared.entrypoint,
            directory=str(options.prepared.working_directory),
            local_size=spec.local_size(),
            heartbeat_interval_s=spec.fault_policy.heartbeat.interval.total_seconds(),
            log_dir=str(directory.logs) if options.shares_logs else None,
            simulated_gpus=options.simulated_gpus,
            kernel_log=options.kernel_log,
            when_alone=options.when_alone,
            beat_file=str(directory.beat_file) if options.shares_logs else None,
        )

    program = (options.python, "-m", "holdfast.cli.hosts")
    return HostOptions(
        task=task, program=program, least=spec.nodes.min, directory=directory, job=options.prepared.job.id
    )


async def _wait_to_give_back(cluster: HostCluster, told: asyncio.Event) -> NoReturn:
    """Raises GivenBack when the signal has come, or too few hosts are left."""
    waiting = asyncio.create_task(told.wait())
    try:
        await asyncio.wait((waiting, cluster.too_few), return_when=asyncio.FIRST_COMPLETED)
        raise GivenBack(cluster.too_few.result() if cluster.too_few.done() else "their time is nearly up")
    finally:
        waiting.cancel()


async def _suspend(link: WatchdogLink, policy: Policy, within_s: float) -> str:
    """Have the job saved and stopped; says what came of it. Nothing is lost when it fails but the last steps."""
    try:
        async with asyncio.timeout(within_s):
            await link.submit(msgspec.structs.replace(policy, suspend=True))
            while True:
                with suppress(Unavailable):
                    status = await link.status()
                    if status is not None and status.phase is JobPhase.SUSPENDED:
                        return status.reason
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        return f"the job was not saved within {within_s:.0f} s; it goes on from the checkpoint before"
    except HoldfastError as error:
        return f"the job could not be saved ({error}); it goes on from the checkpoint before"
