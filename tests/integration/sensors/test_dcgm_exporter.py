"""GPUs from a dcgm-exporter over real HTTP: both generations of names, errors, and every way not to answer."""

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web
from asking import Asking
from http_fake import serving
from patience import patient

from holdfast.agent.sensors.dcgmexporter import BODY_MAX_BYTES, DcgmExporter
from holdfast.api.condition import ConditionKind
from holdfast.api.telemetry import GpuHealth, XidRaised

FIRST = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0",Hostname="n0"} 61\n'
NEWER = 'DCGM_FI_DEV_GPU_TEMP_CELSIUS{gpu="0",UUID="GPU-0",hostname="n0"} 62\n'
OTHER = 'DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-1",Hostname="n0"} 50\n'


def xid(value: int) -> str:
    return f'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-0",err_msg="why"}} {value}\n'


class Exporter:
    """Serves `text`, or whatever `answer` does."""

    def __init__(self) -> None:
        self.text = FIRST
        self.answers = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.answers += 1
        return web.Response(text=self.text)

    async def answered(self, times: int) -> None:
        wanted = self.answers + times
        async with asyncio.timeout(patient(25)):
            while self.answers < wanted:  # noqa: ASYNC110 - it counts in a handler
                await asyncio.sleep(0.01)


async def test_gpus_of_both_generations_and_the_errors_between_them_are_read() -> None:
    exporter = Exporter()
    async with serving(exporter.answer) as url:
        sensor = DcgmExporter(f"{url}/metrics", interval_s=0.02)
        asking = Asking(sensor)
        reading = await asking.until(lambda reading: reading.gpus)
        assert (reading.gpus[0].uuid, reading.gpus[0].temperature_c) == ("GPU-0", 61.0)
        assert reading.unreadable == ()
        exporter.text = NEWER + xid(79)
        await asking.until(lambda reading: reading.gpus[0].temperature_c == 62.0)
        await exporter.answered(5)
        asking.once()
        (event,) = asking.events
        assert isinstance(event, XidRaised)
        assert (event.gpu, event.xid, event.text) == ("GPU-0", 79, "why")
        sensor.close()


async def test_a_gpu_that_is_not_named_any_more_is_unknown_and_not_lost() -> None:
    exporter = Exporter()
    exporter.text = FIRST + OTHER
    async with serving(exporter.answer) as url:
        sensor = DcgmExporter(f"{url}/metrics", interval_s=0.02)
        asking = Asking(sensor)
        await asking.until(lambda reading: len(reading.gpus) == 2)
        exporter.text = FIRST
        reading = await asking.until(lambda reading: reading.gpus[1].health is GpuHealth.UNKNOWN)
        assert reading.gpus[0].health is GpuHealth.HEALTHY
        assert asking.events == []
        sensor.close()


async def test_what_the_exporter_shows_of_a_sick_gpu_is_a_condition() -> None:
    exporter = Exporter()
    exporter.text = FIRST + 'DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0",UUID="GPU-0"} 1\n'
    async with serving(exporter.answer) as url:
        sensor = DcgmExporter(f"{url}/metrics", interval_s=0.02)
        reading = await Asking(sensor).until(lambda reading: reading.conditions)
        assert [(each.kind, each.gpu) for each in reading.conditions] == [
            (ConditionKind.ROW_REMAP_FAILED, "GPU-0")
        ]
        sensor.close()


async def refuses(_: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


async def leads_away(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/elsewhere")


async def serves_something_else(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>welcome</html>")


async def never_ends(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(2 * BODY_MAX_BYTES // 2**16):
        await response.write(b"#" * 2**16)
    return response


async def hangs(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(refuses, "503", id="refuses"),
        pytest.param(leads_away, "302", id="leads away"),
        pytest.param(serves_something_else, "nothing of a GPU", id="serves something else"),
        pytest.param(never_ends, "longer than", id="never ends"),
        pytest.param(hangs, "no answer within", id="hangs"),
    ],
)
async def test_an_exporter_that_does_not_answer_well_is_unreadable(
    answer: Callable[[web.Request], object], reason: str
) -> None:
    patience_s = 0.1 if answer is hangs else patient(5.0)
    async with serving(answer) as url:  # type: ignore[arg-type]
        sensor = DcgmExporter(f"{url}/metrics", interval_s=0.02, patience_s=patience_s)
        reading = await Asking(sensor).until(
            lambda reading: any(reason in each.reason for each in reading.unreadable)
        )
        assert reading.gpus == ()
        assert reading.unreadable[0].source == "dcgm-exporter"
        sensor.close()


async def test_gpus_become_unknown_when_the_exporter_is_away_and_come_back_with_it() -> None:
    exporter = Exporter()
    failing = False

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500) if failing else await exporter.answer(request)

    async with serving(answer) as url:
        sensor = DcgmExporter(f"{url}/metrics", interval_s=0.02, patience_s=patient(5.0))
        asking = Asking(sensor)
        await asking.until(lambda reading: reading.gpus)
        failing = True
        reading = await asking.until(lambda reading: reading.unreadable)
        assert [gpu.health for gpu in reading.gpus] == [GpuHealth.UNKNOWN]
        failing = False
        reading = await asking.until(lambda reading: not reading.unreadable)
        assert [gpu.health for gpu in reading.gpus] == [GpuHealth.HEALTHY]
        sensor.close()


async def test_nobody_at_the_address_is_unreadable() -> None:
    async with serving(refuses) as url:
        pass
    sensor = DcgmExporter(f"{url}/metrics", interval_s=0.02, patience_s=0.1)
    reading = await Asking(sensor).until(lambda reading: reading.unreadable)
    assert reading.gpus == ()
    sensor.close()
