"""Whose certificates are accepted. That they are is tested against a real one, beside the encrypted lines."""

from pathlib import Path

import pytest

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.wire.access import Trust


def test_without_an_authority_nothing_is_encrypted() -> None:
    trust = Trust()
    assert (trust.encrypts, trust.pem(), trust.context()) == (False, "", None)


def test_a_text_that_is_no_certificate_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"HOLDFAST_WATCHDOG_CA: .* give a certificate authority as PEM"):
        Trust(pem="none", given_by="HOLDFAST_WATCHDOG_CA")


def test_a_file_that_cannot_be_used_now_may_be_mended(tmp_path: Path) -> None:
    trust = Trust(tmp_path / "ca.crt")
    assert trust.encrypts
    with pytest.raises(Unavailable, match="cannot be used"):
        trust.context()
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(Unavailable, match="cannot be used"):
        trust.context()
    with pytest.raises(InvalidInput, match="--ca-file"):
        trust.pem()
