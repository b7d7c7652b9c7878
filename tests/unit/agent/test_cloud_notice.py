"""What a cloud's metadata service says of the future of its machine, as notices."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.agent.sensors.cloud_notice import (
    Meaning,
    NotNotice,
    aws_rebalance_notice,
    aws_spot_notice,
    azure_notices,
    when,
)
from holdfast.agent.sensors.preemption import CloudName, cloud_here

ANSWERED = datetime(2026, 11, 21, 8, 20, 0, tzinfo=UTC)


def azure_event(**changes: object) -> str:
    event = {
        "EventId": "C7061BAC",
        "EventStatus": "Scheduled",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["vmss_0", "VMSS_1"],
        "NotBefore": "Sat, 21 Nov 2026 08:20:30 GMT",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }
    return json.dumps({"DocumentIncarnation": 1, "Events": [event | changes]})


def test_a_spot_notice_says_how_long_is_left_by_the_services_own_clock() -> None:
    notice = aws_spot_notice('{"action": "terminate", "time": "2026-11-21T08:22:00Z"}', ANSWERED)
    assert (notice.meaning, notice.within_s) == (Meaning.DEPARTURE, 120.0)
    assert notice.text == "terminate at 2026-11-21T08:22:00Z"


@pytest.mark.parametrize("answered", [ANSWERED, None])
def test_a_spot_notice_without_a_time_counts_as_the_shortest_promised(answered: datetime | None) -> None:
    assert aws_spot_notice('{"action": "stop", "time": "soon"}', answered).within_s == 120.0


def test_a_recommendation_is_no_departure() -> None:
    assert aws_rebalance_notice('{"noticeTime": "2026-11-21T08:22:00Z"}').meaning is Meaning.ADVICE


@pytest.mark.parametrize(
    ("changes", "within_s"),
    [
        pytest.param({}, [30.0], id="preempted"),
        pytest.param(
            {"EventType": "Terminate", "NotBefore": "Sat, 21 Nov 2026 08:30:00 GMT"}, [600.0], id="terminated"
        ),
        pytest.param({"EventType": "Reboot", "NotBefore": ""}, [30.0], id="without a time"),
        pytest.param({"EventStatus": "Started", "NotBefore": ""}, [0.0], id="begun"),
        pytest.param({"NotBefore": "Sat, 21 Nov 2026 08:00:00 GMT"}, [0.0], id="due"),
        pytest.param({"EventType": "Freeze"}, [], id="frozen for seconds"),
        pytest.param({"Resources": ["vmss_0"]}, [], id="another machine of the group"),
    ],
)
def test_a_scheduled_event_counts_where_it_takes_this_machine_away(
    changes: dict[str, object], within_s: list[float]
) -> None:
    assert [notice.within_s for notice in azure_notices(azure_event(**changes), "vmss_1", ANSWERED)] == within_s


@pytest.mark.parametrize(
    "body",
    [
        *("", "[]", "null", "<html>", '{"action": 5}', '{"Events": {}}', '{"Events": [{}]}'),
        pytest.param('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}", id="nested too deeply"),
    ],
)
def test_what_is_not_documented_is_not_a_notice(body: str) -> None:
    with pytest.raises(NotNotice):
        aws_spot_notice(body, ANSWERED)
    if body != '{"action": 5}':
        with pytest.raises(NotNotice):
            list(azure_notices(body, "vm", ANSWERED))


@given(st.text(max_size=40))
@example("Sat, 21 Nov 99999999999999999999 08:00:00 GMT")
@example("Sat, 21 Nov 2026 08:00:00 +99999999999999")
def test_any_text_is_a_time_or_none(text: str) -> None:
    parsed = when(text)
    assert parsed is None or parsed.tzinfo is not None


@pytest.mark.parametrize(
    ("file", "text", "cloud"),
    [
        pytest.param("sys_vendor", "Amazon EC2", CloudName.AWS, id="AWS"),
        pytest.param("bios_version", "4.11.amazon", CloudName.AWS, id="AWS on Xen"),
        pytest.param("product_name", "Google Compute Engine", CloudName.GCP, id="GCP"),
        pytest.param("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77", CloudName.AZURE, id="Azure"),
        pytest.param("sys_vendor", "Microsoft Corporation", None, id="a virtual machine of one's own"),
        pytest.param("sys_vendor", "Supermicro", None, id="a machine of one's own"),
    ],
)
def test_the_firmware_names_the_cloud(tmp_path: Path, file: str, text: str, cloud: CloudName | None) -> None:
    assert cloud_here(str(tmp_path)) is None
    (tmp_path / file).write_text(text + "\n")
    assert cloud_here(str(tmp_path)) is cloud
