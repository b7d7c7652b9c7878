"""Every number, text and list that somebody else may send has a bound, in its type: one walk over all of them."""

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import inspect

from holdfast.api.bounds import WHOLE_MAX
from holdfast.api.decoding import decode
from holdfast.api.errors import Malformed
from holdfast.api.intervention import InterventionRequest
from holdfast.api.membership import FromLauncher, Join
from holdfast.api.plan import FromOperator
from holdfast.api.policy import Policy
from holdfast.api.telemetry import FromAgent

ROOTS = {
    "launcher": FromLauncher,
    "agent": FromAgent,
    "operator": FromOperator,
    "policy": Policy,
    "intervention": InterventionRequest,
}
# Measured values that may be no number at all: that is news in itself, and nothing is compared with them.
ANY_NUMBER = {
    "series",
    "loss",
    "grad_norm",
    "local_grad_norm",
    "memory_temperature_c",
    "power_w",
    "utilization_ratio",
}
# Patterns of 64 bits, of which msgpack carries no more; nothing is added to them.
PATTERNS = {"value", "group", "device", "throttle"}


def unbounded(kind: inspect.Type, path: str, seen: frozenset[type]) -> Iterator[str]:
    """The leaves below `kind` without bounds."""
    name = path.rpartition(".")[2].partition("[")[0]
    match kind:
        case inspect.UnionType(types=types):
            for each in types:
                yield from unbounded(each, path, seen)
        case inspect.StructType(cls=cls, fields=fields):
            if cls not in seen:
                for field in fields:
                    yield from unbounded(field.type, f"{path}.{field.name}", seen | {cls})
        case inspect.Metadata(type=inner):
            yield from unbounded(inner, path, seen)
        case inspect.IntType(ge=least, le=most):
            if least is None or (most is None and name not in PATTERNS):
                yield path
        case inspect.FloatType(ge=least, gt=above, le=most):
            if name not in ANY_NUMBER and (most is None or (least is None and above is None)):
                yield path
        case inspect.StrType(max_length=longest) | inspect.BytesType(max_length=longest):
            if longest is None:
                yield path
        case inspect.VarTupleType(item_type=item, max_length=longest):
            if longest is None:
                yield path
            yield from unbounded(item, f"{path}[]", seen)
        case inspect.TupleType(item_types=items):
            for each in items:
                yield from unbounded(each, f"{path}[]", seen)
        case inspect.DictType(key_type=key, value_type=value, max_length=longest):
            if longest is None:
                yield path
            for each in (key, value):
                yield from unbounded(each, f"{path}[]", seen)
        case inspect.EnumType() | inspect.BoolType() | inspect.NoneType():
            pass
        case _:
            yield f"{path}: nobody has said how {kind} is bounded"


@pytest.mark.parametrize("root", ROOTS)
def test_everything_that_somebody_else_sends_is_bounded(root: str) -> None:
    assert list(unbounded(inspect.type_info(ROOTS[root]), root, frozenset())) == []


def test_what_is_too_large_is_refused_with_field_value_and_limit() -> None:
    join = Join("ns/j", "m", "n", "b", "127.0.0.1", 1, (4000,), warm=True, shown=2**64 - 1)
    with pytest.raises(Malformed) as caught:
        decode(msgspec.msgpack.Decoder(FromLauncher), msgspec.msgpack.encode(join))
    assert str(caught.value) == f"shown: {2**64 - 1} is not accepted; Expected `int` <= {WHOLE_MAX}"


@pytest.mark.parametrize(
    "body",
    [b"\xa1\xff", b"\x91" * 100_000, b"", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xcf" + b"\xff" * 8],
    ids=["no UTF-8", "deep", "empty", "a huge map", "huge bytes", "a huge number"],
)
@pytest.mark.parametrize("root", ROOTS)
def test_what_is_no_message_raises_one_error(root: str, body: bytes) -> None:
    with pytest.raises(Malformed):
        decode(msgspec.msgpack.Decoder(ROOTS[root]), body)
    with pytest.raises(Malformed):
        decode(msgspec.json.Decoder(ROOTS[root]), body)


@pytest.mark.parametrize(
    "body", [b'{"a":' * 50_000, b"[" * 50_000, b'"\xff"', b"9" * 5000, b'{"nodes_max":' + b"9" * 40 + b"}"]
)
def test_json_that_is_none_raises_one_error(body: bytes) -> None:
    with pytest.raises(Malformed):
        decode(msgspec.json.Decoder(Policy), body)
