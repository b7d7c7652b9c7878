"""The process that publishes one job: `python -m holdfast.console.trackers.publisher`, started by the program.

It has this job's credentials in its environment and no other's, and no way to the watchdog: it reads the spool.
What it is to do is one line of JSON on its standard input (`Task`); when that ends it brings out what there is,
for `REST_S` at most, and ends.
"""

import importlib.util
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.policy import MlflowTarget, ReportingPolicy
from holdfast.console.trackers.courier import Courier
from holdfast.console.trackers.mlflowrun import FIELD as MLFLOW_FIELD
from holdfast.console.trackers.mlflowrun import MlflowRun
from holdfast.console.trackers.reach import AllowedHosts
from holdfast.console.trackers.tracker import RunIdentity, Tracker
from holdfast.console.trackers.webhook import Webhook, wall_clock

logger = logging.getLogger(__name__)

REST_S: Final = 20.0
LOOK_S: Final = 1.0
TRIED_AGAIN_S: Final = 600.0
"""How long a tracker that refused is left alone. Credentials may have been put right since."""
"""Long enough for what arrived last. A tracker that is away keeps nobody waiting: the rest is for later."""
WANDB_API: Final = "https://api.wandb.ai"
TRACKING_URI: Final = "MLFLOW_TRACKING_URI"
WANDB_URL: Final = "WANDB_BASE_URL"
PACKAGES: Final[Mapping[str, str]] = {"wandb": "wandb", "tensorboard": "tensorboard"}


class Task(msgspec.Struct, frozen=True):
    """What to publish: the job's run, where its spool lies, and where event files go."""

    job: str
    key: str
    reporting: ReportingPolicy
    spool: str
    event_files: str
    allowed_hosts: tuple[str, ...]


def check_packages(reporting: ReportingPolicy) -> None:
    """Raises InvalidInput when a package is missing that the job's trackers need."""
    wanted = {"wandb": reporting.wandb is not None, "tensorboard": reporting.tensorboard}
    problems = [
        Problem(f"spec.reporting.{name}", None, "install it: pip install 'holdfast[reporting]'")
        for name, is_wanted in wanted.items()
        if is_wanted and importlib.util.find_spec(PACKAGES[name]) is None
    ]
    if problems:
        raise InvalidInput(*problems)


def trackers_of(task: Task, environment: Mapping[str, str]) -> dict[str, Tracker | InvalidInput]:
    """The job's trackers by name; of one that the job or the cluster leaves no way to, why."""
    allowed, reporting = AllowedHosts(task.allowed_hosts), task.reporting
    identity = RunIdentity(task.key, task.job.partition("/")[2], task.job)
    made: dict[str, Tracker | InvalidInput] = {}
    if reporting.wandb is not None:
        from holdfast.console.trackers.wandbrun import WandbRun  # only where it is used: it needs its package

        target = reporting.wandb
        url = target.url or environment.get(WANDB_URL, "") or WANDB_API
        offline = environment.get("WANDB_MODE") == "offline"
        run = WandbRun(identity, msgspec.structs.replace(target, url=url), Path(task.spool), offline=offline)
        made["wandb"] = run if offline else _if_allowed(run, allowed, url, "spec.reporting.wandb.url")
    if reporting.mlflow is not None:
        uri = reporting.mlflow.uri or environment.get(TRACKING_URI, "")
        target_ = MlflowTarget(uri, reporting.mlflow.experiment)
        made["mlflow"] = _if_allowed(
            MlflowRun(identity, target_, allowed, environment), allowed, uri, MLFLOW_FIELD
        )
    if reporting.tensorboard:
        from holdfast.console.trackers.eventfiles import EventFiles  # the same

        made["tensorboard"] = EventFiles(Path(task.event_files))
    if reporting.webhook:
        webhook = Webhook(task.job, reporting.webhook, allowed, environment, wall_clock)
        made["webhook"] = _if_allowed(webhook, allowed, reporting.webhook, "spec.reporting.webhook")
    return made


def _if_allowed(tracker: Tracker, allowed: AllowedHosts, url: str, field: str) -> Tracker | InvalidInput:
    try:
        allowed.check(url, field=field)
    except InvalidInput as error:
        return error
    return tracker


def publish(task: Task, *, stop: threading.Event, rest: threading.Event) -> bool:
    """Publish until told to stop or to rest; whether everything is out of every tracker that takes anything."""
    spool, couriers = Path(task.spool), []
    check_packages(task.reporting)
    for name, made in trackers_of(task, os.environ).items():
        if isinstance(made, InvalidInput):
            logger.error("a tracker is given up job=%s tracker=%s reason=%s", task.job, name, made)
        else:
            couriers.append(Courier(name, made, spool, stop=stop, rest=rest))
    threads = [threading.Thread(target=courier.run, daemon=True) for courier in couriers]
    for thread in threads:
        thread.start()
    while not rest.wait(LOOK_S):
        if any(each.refused and time.monotonic() - each.refused_at > TRIED_AGAIN_S for each in couriers):
            rest.set()  # the next process has today's credentials
    timer = threading.Timer(REST_S, stop.set)
    timer.daemon = True
    timer.start()
    for thread in threads:
        thread.join(REST_S + 5.0)
    timer.cancel()
    return not any(courier.waiting for courier in couriers)


def main() -> int:
    """Exit codes: 0 all is out, 1 something waits for its tracker, 2 what is missing or wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    stop, rest = threading.Event(), threading.Event()

    def end(*_: object) -> None:
        stop.set()
        rest.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started us, who closes our input

    def until_closed() -> None:
        sys.stdin.buffer.read()
        rest.set()

    threading.Thread(target=until_closed, daemon=True).start()
    try:
        return 0 if publish(task, stop=stop, rest=rest) else 1
    except InvalidInput as error:
        logger.error("the job is not published job=%s reason=%s", task.job, error)
        return 2


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    os._exit(code)  # not held up by what a library's threads still wait for
