"""The event loop that the watchdog runs on."""

import asyncio
import sys
from types import ModuleType

import pytest

from holdfast.watchdog.program import loop_factory


def test_without_uvloop_the_loop_is_asyncios_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory() is asyncio.new_event_loop


def test_with_uvloop_the_loop_is_uvloops(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("uvloop")
    module.new_event_loop = asyncio.SelectorEventLoop  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "uvloop", module)
    assert loop_factory() is asyncio.SelectorEventLoop
