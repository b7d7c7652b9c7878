"""JSON of an API server, read however deeply a user nested it.

An API server takes 10,000 levels below the open fields of a job, and sends them with every list of all jobs, where
no decoder reads them. What lies deeper than anything that Kubernetes knows is replaced by a word: such a job is
refused like any other mistake, and hides no other job.
Source: https://github.com/kubernetes-sigs/json (maxNestingDepth)
"""

import re
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

DEPTH_MAX: Final = 100  # a list of pods with affinity has about 15 levels
TOO_DEEP: Final = b'"nested too deeply"'
# Up to the next bracket that is not within a text.
_TO_BRACKET: Final = re.compile(rb'[^"{}\[\]]*+(?:"(?:[^"\\]++|\\.)*+"[^"{}\[\]]*+)*+[{}\[\]]', re.DOTALL)
_OPENING: Final = frozenset(b"{[")


def read(content: bytes, kind: type[T]) -> T:
    """The `kind` in `content`. Raises msgspec.MsgspecError."""
    return decode(msgspec.json.Decoder(kind), content)


def decode(decoder: msgspec.json.Decoder[T], content: bytes | msgspec.Raw) -> T:
    """What `decoder` makes of `content`. Raises msgspec.MsgspecError."""
    try:
        return decoder.decode(content)
    except RecursionError:
        return decoder.decode(shallow(bytes(content)))


def shallow(content: bytes) -> bytes:
    """The JSON in `content`; objects and arrays deeper than `DEPTH_MAX` are the text `TOO_DEEP`."""
    return b"".join(_kept(content))


def _kept(content: bytes) -> Iterator[bytes]:
    depth, begin = 0, 0
    for found in _TO_BRACKET.finditer(content):
        end = found.end()
        if content[end - 1] in _OPENING:
            depth += 1
            if depth == DEPTH_MAX + 1:
                yield content[begin : end - 1]
        else:
            if depth == DEPTH_MAX + 1:
                yield TOO_DEEP
                begin = end
            depth -= 1
    yield content[begin:]
