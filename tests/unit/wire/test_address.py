"""HOST:PORT as every program reads it."""

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.wire.access import Address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:7077", Address("localhost", 7077)),
        ("holdfast-watchdog.holdfast.svc:7077", Address("holdfast-watchdog.holdfast.svc", 7077)),
        ("10.0.0.1:1", Address("10.0.0.1", 1)),
        ("[::1]:7077", Address("::1", 7077)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, expected: Address) -> None:
    assert Address.parse(text, given_by="--watchdog") == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    [
        "localhost",
        ":7077",
        "host:",
        "host:0",
        "host:65536",
        "host:٣",
        "::1:7077",
        "[host]:1",
        "[]:1",
        "http://host:1",
        "a b:1",
        "user@host:1",
        "[::1:7077",
    ],
)
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"--watchdog: .* is not accepted; write HOST:PORT"):
        Address.parse(text, given_by="--watchdog", fix="write HOST:PORT")


def test_who_listens_may_leave_the_port_to_the_system() -> None:
    assert Address.parse("[::]:0", given_by="--listen", port_min=0) == Address("::", 0)
