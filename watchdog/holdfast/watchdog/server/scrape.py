"""What Prometheus reads: the watchdog's own metrics, and every job's as one."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from aiohttp import web

from holdfast.api.exposition import Page, accepted
from holdfast.watchdog.detectors.progress import Newest
from holdfast.watchdog.metrics.counts import Count
from holdfast.watchdog.metrics.job import (
    NODES_MAX,
    write_course,
    write_faults,
    write_proofs,
    write_utilization,
    write_vitals,
    write_worth,
)
from holdfast.watchdog.metrics.table import WATCHDOG_METRICS
from holdfast.watchdog.metrics.vitals import Vitals, slices
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.watchdog import WATCHDOG, Watchdog

LAG_LOOKED_AT_EVERY_S: Final = 0.5
LAGS_KEPT: Final = 60

# Several who scrape at once, and people who look, share one pass over the ranks.
VITALS_KEPT_S: Final = 1.0
# For how long a page goes on in one piece, as a part of how long the others had before: they wait longer by that.
OWN_SHARE: Final = 0.25


# How late the event loop is: what every launcher and agent waits for.


class LoopLag:
    """The latest of the last `LAGS_KEPT` wake-ups, which were to come every `LAG_LOOKED_AT_EVERY_S` seconds."""

    def __init__(self) -> None:
        self._late_s: deque[float] = deque(maxlen=LAGS_KEPT)

    @property
    def worst_s(self) -> float:
        """Zero before the first wake-up."""
        return max(self._late_s, default=0.0)

    async def follow(self) -> None:
        """Look for as long as it runs; ends by cancellation."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_LOOKED_AT_EVERY_S
            await asyncio.sleep(LAG_LOOKED_AT_EVERY_S)
            self._late_s.append(max(0.0, loop.time() - due))


class Scraper:
    """Writes the page. Only the pass over the ranks is kept for a moment; all else is of now."""

    def __init__(self) -> None:
        self.lag = LoopLag()
        self._goes_on_until = 0.0
        self._vitals: dict[str, tuple[float, Vitals]] = {}
        try:
            self._version = version("holdfast")
        except PackageNotFoundError:
            self._version = "unknown"

    async def page(self, watchdog: Watchdog) -> Page:
        """All metrics. Others get their turn between jobs and, in a large one, between slices of its ranks."""
        page = Page(WATCHDOG_METRICS)
        page.put("holdfast_watchdog_build_info", 1, self._version)
        page.put("holdfast_watchdog_leading", int(watchdog.leading is not None))
        page.put("holdfast_watchdog_store_up", int(watchdog.trouble() is None))
        if watchdog.store_replicas is not None:
            page.put("holdfast_watchdog_store_replicas", watchdog.store_replicas)
        page.put("holdfast_watchdog_loop_lag_seconds", self.lag.worst_s)
        for what in Count:
            page.put(f"holdfast_watchdog_{what.value}_total", watchdog.tally[what])
        if watchdog.leading is not None:  # else nothing is known of nodes
            quarantined = watchdog.fleet.quarantined
            page.put("holdfast_fleet_quarantined_nodes", len(quarantined))
            for node in quarantined[:NODES_MAX]:
                page.put("holdfast_fleet_node_quarantined", 1, node)
            for each in watchdog.failures.gatherings:
                labels = each.family.value, each.place.kind, each.place.name
                page.put("holdfast_fleet_gathered_faults", each.faults, *labels)
        hosts = list(watchdog.hosts())
        self._vitals = {host.job.name: kept for host in hosts if (kept := self._vitals.get(host.job.name))}
        for host in hosts:
            _write_job(page, host, await self._vitals_of(host))
        return page

    async def _vitals_of(self, host: JobHost) -> Vitals:
        now, job = host.clock.now(), host.job
        kept_at, vitals = self._vitals.get(job.name, (-VITALS_KEPT_S, Vitals()))
        if now < kept_at + VITALS_KEPT_S:
            return vitals
        newest = job.progress.newest() if job.progress is not None else Newest()
        stale_after_s = job.state.policy.lost_after_s if job.state.policy else 0.0
        for done in slices(newest, stale_after_s=stale_after_s, now=now):
            vitals = done or vitals
            await self.give_way()
        self._vitals[job.name] = now, vitals
        return vitals

    async def give_way(self) -> None:
        """Give others their turn. When that takes long, because thousands of messages wait, the page goes on for a
        part of that time at once: with a turn after each slice it would take as many of these as it has slices.
        """
        clock = asyncio.get_running_loop().time
        if (gave_way_at := clock()) >= self._goes_on_until:
            await asyncio.sleep(0)
            self._goes_on_until = clock() + OWN_SHARE * (clock() - gave_way_at)


def _write_job(page: Page, host: JobHost, vitals: Vitals) -> None:
    job, state, now = host.job, host.job.shown, host.clock.now()
    page.put("holdfast_watchdog_launchers", len(host.launchers), job.name)
    page.put("holdfast_watchdog_agents", len(host.agents), job.name)
    page.put("holdfast_watchdog_journal_lines", job.offset - job.extent.first + 1, job.name)
    page.put("holdfast_watchdog_journal_bytes", job.extent.bytes, job.name)
    page.put("holdfast_watchdog_store_refuses", int(job.trouble is not None), job.name)
    for judge, failures in job.senses.failures.items() if job.senses else ():
        page.put("holdfast_watchdog_judge_failures_total", failures, job.name, judge)
    progress = job.progress
    seen, step_time_s = (progress.step(), progress.step_time_s()) if progress else (None, None)
    write_course(page, state, step_time_s=step_time_s, now=now)
    write_vitals(page, job.name, vitals, (seen, state.step))
    write_proofs(page, job.name, job.counts)
    write_faults(page, state, job.counts, now=now)
    write_worth(page, state, step_time_s=step_time_s, now=now)
    write_utilization(page, state, vitals.tokens_per_s)


SCRAPER = web.AppKey("scraper", Scraper)


async def metrics(request: web.Request) -> web.Response:
    """In the format the request accepts."""
    style = accepted(request.headers.get("Accept", ""))
    page = await request.app[SCRAPER].page(request.app[WATCHDOG])
    return web.Response(body=page.text(style).encode(), headers={"Content-Type": style.value})


async def watch_loop(app: web.Application) -> AsyncIterator[None]:
    """Watches how late the event loop is while the application runs."""
    watching = asyncio.create_task(app[SCRAPER].lag.follow())
    yield
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
