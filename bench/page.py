"""How smoothly the page's map of ranks moves at 100,000 ranks, while it is panned, zoomed and told of new ranks.

    python bench/page.py [--nodes 12500] [--seconds 6]

A console with scripted data serves the page to chromium without a GPU, so every pixel is drawn by the processor:
an engineer's machine does more. New columns of all ranks come once a second.
"""

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from figure import Figure, Goal, measured, publish

TESTS = Path(__file__).parents[1] / "tests"
sys.path += [str(TESTS / name) for name in ("servers", "layers", "browser")]

from chromium import FLAGS, chromium  # noqa: E402  from folders that are on the path only now
from fake_console import OPERATOR, FakeConsole, serving  # noqa: E402
from playwright.sync_api import Page, sync_playwright  # noqa: E402
from scripted_job import ScriptedJob  # noqa: E402

FRAMES_S: Final = 30.0
FRAME_MS: Final = 1000.0 / FRAMES_S
SHOWN_S: Final = 5.0
WITHIN_MS: Final = 60_000
COLOURS: Final = ("health", "phase", "step", "time", "loss")

# Zooms in and out around a point that wanders, and drags the map in between; returns milliseconds between frames.
DRIVE: Final = """async (seconds) => {
  const map = document.querySelector("#rank-canvas");
  map.scrollIntoView();
  const box = map.getBoundingClientRect();
  const at = (n) => ({clientX: box.left + box.width * (0.5 + 0.3 * Math.sin(n / 20)),
                      clientY: box.top + box.height * (0.5 + 0.3 * Math.cos(n / 15)),
                      bubbles: true, cancelable: true});
  const gaps = [];
  const end = performance.now() + 1000 * seconds;
  let last = performance.now();
  for (let n = 0; performance.now() < end; n += 1) {
    const phase = n % 120;
    if (phase < 40) map.dispatchEvent(new WheelEvent("wheel", {...at(n), deltaY: -25, ctrlKey: true}));
    else if (phase < 80) map.dispatchEvent(new WheelEvent("wheel", {...at(n), deltaY: 25, ctrlKey: true}));
    else window.drags(n - 1, n, at);
    await new Promise(requestAnimationFrame);
    gaps.push(performance.now() - last);
    last = performance.now();
  }
  return gaps;
}"""
DRAGS: Final = """window.drags = (before, now, at) => {
  const map = document.querySelector("#rank-canvas");
  map.setPointerCapture = () => {};
  const event = (type, n) => new PointerEvent(type, {...at(n), pointerId: 1, pointerType: "mouse"});
  map.dispatchEvent(event("pointerdown", before));
  map.dispatchEvent(event("pointermove", now));
  map.dispatchEvent(event("pointerup", now));
}"""


def figures(console: FakeConsole, page: Page, seconds: float) -> list[Figure]:
    """What a run of the page gives, all colours one after the other."""
    gaps: list[float] = []
    for colour in COLOURS:
        page.locator("#rank-by").select_option(colour)
        gaps += page.evaluate(DRIVE, seconds / len(COLOURS))
    rates = [1000.0 * len(part) / sum(part) for part in parts(gaps)]
    slow = sorted(gaps)[int(0.99 * len(gaps))]
    many = f"{console.job.world:,} ranks"
    return [
        measured(
            f"frames a second, {many}", ours=rates, other=[FRAMES_S], unit="1/s", target=1.0, goal=Goal.AT_LEAST
        ),
        measured(f"99 of 100 frames within, {many}", ours=[slow], other=[FRAME_MS], unit="ms", target=1.0),
    ]


def parts(gaps: Sequence[float], count: int = 5) -> list[Sequence[float]]:
    size = max(1, len(gaps) // count)
    return [gaps[i : i + size] for i in range(0, size * count, size)]


def updating(console: FakeConsole, ended: threading.Event) -> None:
    """All ranks are elsewhere, once a second."""
    while not ended.wait(1.0):
        console.job.move()
        console.tell("ranks", console.job.told)


def opened(browser: Any, console: FakeConsole) -> tuple[Page, float]:
    """The page with all of its ranks, and the seconds until they were shown."""
    page = browser.new_page(viewport={"width": 1440, "height": 1000})
    page.add_init_script(DRAGS)
    page.goto(f"{console.url}#token={OPERATOR}")
    page.locator("#worst-ranks tr").first.wait_for(timeout=WITHIN_MS)
    return page, page.evaluate("performance.now()") / 1000.0


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--nodes", type=int, default=12_500, help="eight ranks each")
    words.add_argument("--seconds", type=float, default=6.0, help="how long the map is moved")
    words.add_argument("--opens", type=int, default=3, help="how often the page is opened")
    asked = words.parse_args()
    job = ScriptedJob.of(nodes=asked.nodes, racks=max(1, asked.nodes // 16))
    job.break_node(asked.nodes // 3)
    ended = threading.Event()
    with serving(job) as console, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        opens = [opened(browser, console) for _ in range(asked.opens)]
        for other, _ in opens[:-1]:
            other.close()
        threading.Thread(target=updating, args=(console, ended), daemon=True).start()
        page, _ = opens[-1]
        found = figures(console, page, asked.seconds)
        ended.set()
        browser.close()
    shown = measured(
        "until all ranks are shown", ours=[each for _, each in opens], other=[SHOWN_S], unit="s", target=1.0
    )
    publish("page", [*found, shown])


if __name__ == "__main__":
    main()
