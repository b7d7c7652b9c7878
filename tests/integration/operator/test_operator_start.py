"""What an operator cannot start with, it says in a sentence."""

from pathlib import Path

import pytest
from operator_rig import OperatorProcess, eventually
from silent_strangers import silent_strangers

CANNOT_START = 3


@pytest.mark.parametrize("content", [None, "not a certificate"], ids=["missing", "no certificate"])
async def test_a_certificate_authority_that_cannot_be_used_ends_it_with_a_sentence_before_it_leads(
    operator: OperatorProcess, tmp_path: Path, content: str | None
) -> None:
    authority = tmp_path / "ca.pem"
    if content is not None:
        authority.write_text(content)
    operator.start("--watchdog-ca-file", str(authority))

    async def ended() -> bool:
        return operator.exit_code is not None

    await eventually("its end", ended)
    assert operator.exit_code == CANNOT_START
    said = operator.log.read_text()
    assert f"holdfast operator: the certificate authority {authority} cannot be used: " in said
    assert "leading" not in said
    assert "Traceback" not in said


async def test_strangers_that_say_nothing_close_its_port_to_nobody(operator: OperatorProcess) -> None:
    operator.start(has_few_files=True)
    await eventually("its port", operator.ready)
    with silent_strangers(operator.port):
        assert await operator.ready()
        assert await operator.metric("holdfast_operator_leader") == 1
