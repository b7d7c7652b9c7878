"""What a host is told over the standard input of its program: one line of JSON, then beats."""

from typing import Final

import msgspec

BEAT: Final = b"\n"
BEAT_EVERY_S: Final = 5.0
SILENCE_S: Final = 60.0
"""Who hears nothing for so long is alone. Longer than a busy login node or Slurm controller ever pauses."""
TASK_BYTES_MAX: Final = 1 << 20


class HostTask(msgspec.Struct, frozen=True, kw_only=True):
    """One host's part. `authority` is the PEM of the watchdog's certificate.

    `entrypoint` is what the launcher takes; `directory` is where it runs. `log_dir` None: what workers write goes
    to the program's own output. `simulated_gpus` 0: the real ones are sensed. `kernel_log` as the agent's flag.
    `when_alone` is a command to run when nothing was heard for `SILENCE_S`; empty: none.
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

    def line(self) -> bytes:
        """As it is sent."""
        return msgspec.json.encode(self) + b"\n"
