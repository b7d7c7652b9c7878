"""What a launcher that fails leaves for whoever asks why its pod ended: the container's termination message.

The kubelet makes the file, takes up to 4096 bytes of it and shows them in the pod's status.
Source: https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
"""

import contextlib
import os

from holdfast.agent.launch.outcome import Outcome

TERMINATION_LOG = "/dev/termination-log"
_BYTES_MAX = 4096
_REASON_BYTES_MAX = 1024  # the end of a traceback says more than the end of a long reason
_CUT = b"...\n"


def last_words(outcome: Outcome) -> str:
    """Why the run failed, and how the worker that failed last put it."""
    if not outcome.failures:
        return outcome.reason
    rank, failure = list(outcome.failures.items())[-1]
    how = f"signal {-failure.exit_code}" if failure.exit_code < 0 else f"exit code {failure.exit_code}"
    return f"{outcome.reason}\nrank {rank} ended with {how}\n{failure.error}"


def leave_last_words(path: str, words: str) -> None:
    """Write `words` to `path` where there is such a file, cut to what the kubelet takes. Never raises."""
    with contextlib.suppress(OSError):
        # Not created: outside a pod nobody would look for it.
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, shortened(words))
        finally:
            os.close(descriptor)


def shortened(words: str) -> bytes:
    """`words` in at most 4096 bytes: the beginning, which is the reason, and the end, which is the error."""
    content = words.encode("utf-8", "replace")
    if len(content) <= _BYTES_MAX:
        return content
    reason = content.split(b"\n", 1)[0][:_REASON_BYTES_MAX] + b"\n" + _CUT
    return _whole(reason + content[-(_BYTES_MAX - len(reason)) :])


def _whole(content: bytes) -> bytes:
    """Without the characters that were cut through."""
    return content.decode("utf-8", "ignore").encode()
