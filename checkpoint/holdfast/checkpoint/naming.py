"""The names a checkpoint directory holds.

step-00000012                     committed
step-00000012.7-<token>_<attempt> committed by round 7 in an object store, also where it was copied from there
step-00000012.tmp-7-<token>       being written by round 7
step-00000012.old-<token>         set aside while its successor takes its place
step-00000012.gone-<token>        being deleted
fence, fence.lock                 the highest round that entered, and what guards it
"""

import re

from holdfast.checkpoint import manifest

_COMMITTED = re.compile(r"step-(\d{8,})(?:\.\d+-\w+)?")
_STAGED = re.compile(r"step-\d{8,}\.tmp-(\d+)-(\w+)")
_SET_ASIDE = re.compile(r"(step-\d{8,})\.old-\w+")
_DOOMED = re.compile(r"step-\d{8,}\.gone-\w+")


def committed_name(step: int) -> str:
    return f"step-{step:08d}"


def staged_name(step: int, *, round: int, token: str) -> str:
    return f"{committed_name(step)}.tmp-{round}-{token}"


def set_aside_name(committed: str, token: str) -> str:
    return f"{committed}.old-{token}"


def doomed_name(committed: str, token: str) -> str:
    return f"{committed}.gone-{token}"


def committed_step(name: str) -> int | None:
    """The step of a committed checkpoint's name, None for any other name."""
    match = _COMMITTED.fullmatch(name)
    return int(match[1]) if match else None


def staged_by(name: str) -> tuple[int, str] | None:
    """The round and the token of who stages under this name, None for any other name."""
    match = _STAGED.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def set_aside_from(name: str) -> str | None:
    """The committed name that was set aside under this one, None for any other name."""
    match = _SET_ASIDE.fullmatch(name)
    return match[1] if match else None


def is_doomed(name: str) -> bool:
    return _DOOMED.fullmatch(name) is not None


def manifest_path(name: str) -> str:
    return f"{name}/{manifest.FILE_NAME}"
