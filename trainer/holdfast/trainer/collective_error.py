"""Whose fault is an exception that left the training function: a peer's, or the script's own?

The rule, in one place. It looks at the exception and everything it was raised from:

- an error type of torch.distributed (the NCCL backend, the store, its network) is a collective failure;
- a RuntimeError whose text names the transport of the gloo backend, or a connection that a peer closed, is
  one as well, because gloo raises plain RuntimeErrors;
- everything else is the script's own: it propagates and ends the process with its traceback.

A group of one rank has no peers, so nothing in it is a peer's fault; the caller knows the world size.
"""

import re
from collections.abc import Iterator

import torch.distributed as dist

_GLOO_TROUBLE = re.compile(
    r"gloo/transport/"
    r"|Connection (?:closed|reset|refused) by peer"
    r"|Timed out waiting \d+ms for (?:send|recv) operation"
    r"|Gloo connectFullMesh failed"
    r"|Broken pipe",
    re.IGNORECASE,
)


def is_collective_failure(error: BaseException) -> bool:
    """True when `error` came out of a collective, or of the store that forms one, because of a peer."""
    return any(_is_failure(link) for link in _chain(error))


def _is_failure(error: BaseException) -> bool:
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and _GLOO_TROUBLE.search(str(error)) is not None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
