"""What the page's modules decide without a page: how a stream is read, where ranks stand, which are the worst."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fake_console import FakeConsole, serving
from playwright.sync_api import Browser, Page
from scripted_job import ScriptedJob


@pytest.fixture(scope="module")
def console_of_modules() -> Iterator[FakeConsole]:
    with serving(ScriptedJob.of(nodes=1, points=1)) as console:
        yield console


@pytest.fixture(scope="module")
def modules(browser: Browser, console_of_modules: FakeConsole) -> Iterator[Page]:
    page = browser.new_page()
    page.goto(console_of_modules.url)
    yield page
    page.close()


def called(page: Page, module: str, script: str) -> Any:
    """What `script` gives, a function of the module's exports."""
    return json.loads(page.evaluate(f"import('/static/{module}.js').then({script}).then(JSON.stringify)"))


@pytest.mark.parametrize("cut", range(1, 12))
def test_events_are_the_same_however_the_stream_is_cut(modules: Page, cut: int) -> None:
    stream = ": hello\\n\\nevent: job\\r\\ndata: {}\\r\\n\\r\\nevent: x\\ndata: a\\ndata:b\\n\\nevent: y\\n\\n"
    script = f"""({{parser}}) => {{
      const told = []; const feed = parser((...each) => told.push(each)); const all = "{stream}";
      for (let i = 0; i < all.length; i += {cut}) feed(all.slice(i, i + {cut}));
      return told;
    }}"""
    assert called(modules, "feed", script) == [["job", "{}"], ["x", "a\nb"]]


def test_tries_come_later_and_later_and_not_all_at_once(modules: Page) -> None:
    script = "({backoff}) => [1, 2, 3, 20].map((n) => [backoff(n, () => 0), backoff(n, () => 1)])"
    assert called(modules, "feed", script) == [[375, 625], [750, 1250], [1500, 2500], [11250, 18750]]


def test_what_presses_most_comes_first(modules: Page) -> None:
    script = """({pressing}) =>
      [["Running", 0], ["Failed", 0], ["Recovering", 1], ["Stalled", 0], ["Succeeded", 0]]
        .map(([phase, open_incidents]) => pressing({phase, open_incidents}))"""
    assert called(modules, "jobs", script) == [0, 1, 2, 3, 0]


def test_a_newest_step_of_long_ago_says_so(modules: Page) -> None:
    script = """({facts}) => [2, 45].map((step_age_s) =>
      facts({line: {step: 700}, status: {step_age_s}, round: 1, world: 8})[0])"""
    assert called(modules, "jobline", script) == [["Step", "700", ""], ["Step", "700", "45 s ago"]]


@pytest.mark.parametrize("racks", [0, 7], ids=["no racks", "racks"])
def test_every_rank_has_a_place_of_its_own_beside_those_of_its_host(modules: Page, racks: int) -> None:
    script = f"""({{layout}}) => {{
      const node = Uint32Array.from({{length: 1000 * 8}}, (_, i) => i >> 3);
      const racks = Array.from({{length: 1000}}, (_, i) => ({racks} ? `r${{i % {racks}}}` : null));
      const {{x, y, at, width, height}} = layout({{n: node.length, node}}, racks, {{width: 30, height: 10}});
      const own = node.every((_, i) => at[y[i] * width + x[i]] === i && x[i] < width && y[i] < height);
      const together = node.every((_, i) => i % 8 === 0 || (y[i] === y[i - 1] && x[i] === x[i - 1] + 1));
      return [own, together, at.filter((each) => each >= 0).length];
    }}"""
    assert called(modules, "ranklayout", script) == [True, True, 8000]


def test_the_worst_ranks_are_faulty_then_suspect_then_unknown_then_behind_then_slow(modules: Page) -> None:
    script = """({worst}) => worst({
      n: 7,
      health: Uint8Array.of(1, 1, 3, 1, 2, 0, 1),
      step: Uint32Array.of(9, 9, 9, 7, 9, 4294967295, 9),
      stepS: Float32Array.of(1, 3, 1, 1, 1, NaN, 2),
    }, 6)"""
    assert called(modules, "ranks", script) == [2, 4, 5, 3, 1, 6]


def test_columns_of_another_version_say_what_to_do(modules: Page) -> None:
    script = (
        "({decode}) => { try { decode(new Uint32Array([2, 0]).buffer); } catch (error) { return error.message; } }"
    )
    assert "reload it" in called(modules, "ranks", script)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("seconds(0.0123)", "12.3 ms"),
        ("seconds(59.94)", "59.9 s"),
        ("seconds(7300)", "2 h 1 min"),
        ("long(90061)", "1 d 1 h"),
        ("long(0)", "0 s"),
        ("number(1.23456789)", "1.2346"),
        ("number('nan')", "nan"),
        ("percent(0.4321)", "43.2%"),
        ("offset(-0.5)", "\u22120.50 s"),
        ("money(0.5, 'EUR')", "0.5 EUR/h"),
        ("ranges([0, 1, 2, 5, 7, 8])", "0-2, 5, 7-8"),
        ("seconds(null) + number(undefined) + percent(null) + long(null) + money(null)", "?????"),
    ],
)
def test_figures_in_words(modules: Page, call: str, says: str) -> None:
    names = "seconds, long, number, percent, offset, money, ranges"
    assert called(modules, "wording", f"({{{names}}}) => {call}") == says
