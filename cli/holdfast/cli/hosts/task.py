"""What a host is told over the standard input of its program: one line of JSON, then beats."""

from typing import Final

import msgspec

BEAT: Final = b"\n"
BEAT_EVERY_S: Final = 5.0
SILENCE_S: Final = 60.0
"""Who hears nothing for so long is alone. Longer than a busy login node or Slurm controller ever pauses."""
SEEN_WITHIN_S: Final = 20.0
"""How long a live holder's beat may take to be seen through a shared file system."""
TASK_BYTES_MAX: Final = 1 << 20


class HostTask(msgspec.Struct, frozen=True, kw_only=True):
    """One host's part. `authority` is the PEM of the watchdog's certificate.

    `entrypoint` is what the launcher takes; `directory` is where it runs. `log_dir` None: what workers write goes
    to the program's own output. `simulated_gpus` 0: the real ones are sensed. `kernel_log` as the agent's flag.
    `when_alone` is a command to run when nothing was heard for `SILENCE_S`; empty: none. It is not run while
    `beat_file`, on a file system that the holder shares, keeps changing: then this host alone is cut off.
    """

    job: str
    host: str
    watchdog: str
    token: str
    authority: str
    entrypoint: tuple[str, ...]
    directory: str
    local_size: int
    heartbeat_interval_s: float
    log_dir: str | None = None
    simulated_gpus: int = 0
    kernel_log: str = "auto"
    when_alone: tuple[str, ...] = ()
    beat_file: str | None = None

    def line(self) -> bytes:
        """As it is sent."""
        return msgspec.json.encode(self) + b"\n"
